"""The program: `mooring-echo --url … --key-file …`."""

from mooring_adapter import Adapter
from mooring_adapter import main as run
from mooring_echo.actions import remember, say
from mooring_echo.plans import plan
from mooring_echo.watch import watch

ECHO = Adapter(
    app_slug="echo",
    plan=plan,
    watch=watch,
    actions={"echo.say": say, "echo.remember": remember},
)


def main() -> None:
    run(ECHO)


if __name__ == "__main__":
    main()
