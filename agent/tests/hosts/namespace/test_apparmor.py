"""The AppArmor profile of sandboxes: its parser accepts it, and no sandbox runs without one that it should have.

Whether the kernel enforces it is tried only where the kernel has AppArmor.
"""

import subprocess
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import Inside, spec_of
from mooring_agent.hosts.contract import HostFailure, Owner
from mooring_agent.hosts.namespace import NamespaceHost, apparmor

pytestmark = pytest.mark.anyio

MEMBER = Owner("alc_1", "member")


def parse(profile: Path) -> "subprocess.CompletedProcess[str]":
    words = ["apparmor_parser", "--skip-kernel-load", "--skip-cache"]
    return subprocess.run([*words, profile], capture_output=True, text=True, check=False)


def test_the_parser_accepts_the_profile_and_refuses_a_broken_one(tmp_path: Path) -> None:
    accepted = parse(apparmor.PROFILE)
    assert accepted.returncode == 0, accepted.stderr
    broken = tmp_path / "broken"
    broken.write_text(apparmor.PROFILE.read_text().replace("deny mount,", "deny mont,"))
    assert parse(broken).returncode != 0


async def test_the_facts_say_whether_a_profile_is_enforced_and_programs_have_it(host: NamespaceHost) -> None:
    facts = await host.create(spec_of("alc_1"))
    code, label = await Inside(host, MEMBER).run("cat", "/proc/self/attr/current")
    if facts.limits["apparmor"] == apparmor.NAME:
        assert (code, label.split()) == (0, [apparmor.NAME, "(enforce)"])
    else:
        assert facts.limits["apparmor"].startswith("not enforced: ")
        assert apparmor.NAME not in label


async def test_an_owner_that_cannot_enter_its_profile_is_not_spawned(
    host: NamespaceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.create(spec_of("alc_1"))
    unknown = apparmor.Confinement("mooring-profile-that-is-not-loaded")
    monkeypatch.setattr(apparmor, "load", lambda: unknown)
    with pytest.raises(HostFailure, match="AppArmor profile"):
        await Inside(host, MEMBER).run("true")


def test_a_kernel_without_apparmor_confines_nothing_and_says_so(tmp_path: Path) -> None:
    switch = tmp_path / "enabled"
    for content in (None, "N\n"):
        if content is not None:
            switch.write_text(content)
        found = apparmor.load.__wrapped__(switch)
        assert (found.profile, found.describe()) == (
            "",
            "not enforced: this kernel has no AppArmor, or it is switched off",
        )
