"""The relay and the agent speak the same frames: two distributions that may not import each other, one text."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_both_ends_of_a_tunnel_have_the_same_frames() -> None:
    ours = (ROOT / "server" / "mooring" / "relay" / "frames.py").read_text(encoding="utf-8")
    theirs = (ROOT / "agent" / "mooring_agent" / "tunnels" / "frames.py").read_text(encoding="utf-8")
    assert ours == theirs
