"""What the demo cost: the clocks of its allocations, rated by the function that charges them, and the proof."""

from tools.demo_apps import DemoContext
from tools.demo_output import DemoFailed, heading


def show_money(demo: DemoContext) -> None:
    """Print the tenant's cost by SKU, and every law of the ledger as the platform's admin proves it."""
    heading("What it cost so far, and the proof of the ledger")
    print("   The hour is still open, so its cost is an estimate by the function that charges it.")
    cost = _printed(demo, demo.token, "cost", "--by", "sku")
    if "estimated" not in cost:
        raise DemoFailed("the cost of the open hour is not labelled as an estimate")
    _printed(demo, demo.admin, "billing", "prove", "--platform")


def _printed(demo: DemoContext, token: str, *words: str) -> str:
    print(f"   $ mooring {' '.join(words)}")
    ran = demo.mooring(token, *words)
    if ran.returncode:
        raise DemoFailed(f"mooring {' '.join(words)} ended with {ran.returncode}: {ran.stderr.strip()}")
    for line in ran.stdout.splitlines():
        print(f"   {line}")
    return ran.stdout
