"""User-data for machines that boot by themselves, validated by the real `cloud-init schema`."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapters.workload.tests.real_cloud_init import schema_findings
from mooring_workload import catalog
from mooring_workload.__main__ import main
from mooring_workload.catalog import manifest_of
from mooring_workload.cloud_init import HEAD, Sources, render_user_data
from mooring_workload.profile import read_profile
from mooring_workload.render import NotRenderable
from tests.support.rows import every_row

REPOSITORY = "registry.example/apps/lab"
WEIGHTS = Sources("registry.example/apps/vllm", {"weights": "https://models.example/tiny.gguf"})
PROGRAM = Sources(contents={"program": catalog.program()})
CONFIG = {"hello": {"greeting": 'say "hi" for $1 & 100%'}, "jupyter": {}, "vllm": {"served_model_name": "tiny"}}
SOURCES = {"hello": PROGRAM, "jupyter": Sources(REPOSITORY), "vllm": WEIGHTS}


def rendered(app: str) -> str:
    return render_user_data(read_profile(manifest_of(app)), CONFIG[app], SOURCES[app])


def file_of(document: str, path: str) -> dict[str, Any]:
    (found,) = (each for each in yaml.safe_load(document)["write_files"] if each["path"] == path)
    return dict(found)


@pytest.mark.real_part("cloud-init")
@pytest.mark.parametrize("app", catalog.APPS)
def test_the_real_cloud_init_takes_the_document_of_each_app(app: str, tmp_path: Path) -> None:
    document = tmp_path / "user-data"
    document.write_text(rendered(app))
    assert document.read_text().startswith("#cloud-config\n")
    assert schema_findings(document) is None


@pytest.mark.real_part("cloud-init")
def test_the_real_cloud_init_refuses_a_broken_document(tmp_path: Path) -> None:
    document = tmp_path / "user-data"
    broken = yaml.safe_load(rendered("hello"))
    del broken["write_files"][0]["path"]
    broken["runcmd"] = "systemctl start"
    document.write_text(HEAD + yaml.safe_dump(broken))
    said = schema_findings(document) or ""
    assert "'path' is a required property" in said
    assert "runcmd" in said


def test_an_image_is_run_by_its_digest_without_any_right() -> None:
    unit = file_of(rendered("jupyter"), "/etc/systemd/system/mooring-jupyter.service")["content"]
    assert f'"{REPOSITORY}@{manifest_of("jupyter")["artifacts"]["image"]}"' in unit
    assert '"--cap-drop" "ALL"' in unit
    assert '"--read-only"' in unit


def test_no_secret_is_in_it_and_the_program_waits_for_one() -> None:
    document = rendered("jupyter")
    unit = file_of(document, "/etc/systemd/system/mooring-jupyter.service")["content"]
    assert "AssertPathExists=/etc/mooring/jupyter.secrets" in unit
    assert '"--env" "JUPYTER_TOKEN"' in unit, "by name alone"
    assert "JUPYTER_TOKEN=" not in document


def test_a_program_is_written_out_and_its_greeting_survives_both_quotings() -> None:
    document = rendered("hello")
    program = file_of(document, "/app/program")
    assert base64.b64decode(program["content"]) == catalog.program()
    environment = file_of(document, "/etc/mooring/hello.env")["content"]
    assert 'GREETING="say \\"hi\\" for \\$1 & 100%"\n' in environment
    unit = file_of(document, "/etc/systemd/system/mooring-hello.service")["content"]
    assert 'ExecStart="/usr/bin/env" "python3" "/app/program"\n' in unit
    assert "packages" not in yaml.safe_load(document)


def test_words_of_a_unit_are_no_variables_and_no_specifiers() -> None:
    unit = file_of(rendered("vllm"), "/etc/systemd/system/mooring-vllm.service")["content"]
    assert '\\"$$MAX_MODEL_LEN\\"' in unit


def test_weights_are_compared_with_their_digest_before_the_start() -> None:
    document = rendered("vllm")
    script = file_of(document, "/usr/local/libexec/mooring-fetch-vllm")["content"]
    assert f"echo '{'1' * 64}  /var/lib/mooring/vllm/weights/weights.new' | sha256sum --check" in script
    unit = file_of(document, "/etc/systemd/system/mooring-vllm.service")["content"]
    assert "ExecStartPre=/usr/local/libexec/mooring-fetch-vllm" in unit


@every_row(
    ("app", "sources", "missing"),
    [
        ("jupyter", Sources(), "--repository"),
        ("jupyter", Sources("registry.example/lab:latest"), "without a tag"),
        ("hello", Sources(), "--content program=FILE"),
        ("vllm", Sources("registry.example/apps/vllm", {"weights": "https://a.example/x' ; rm"}), "--address weights"),
    ],
)
def test_what_is_missing_is_named(app: str, sources: Sources, missing: str) -> None:
    with pytest.raises(NotRenderable, match=missing):
        render_user_data(read_profile(manifest_of(app)), CONFIG[app], sources)


def test_the_command_prints_it_and_refuses_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, program = tmp_path / "mooring.yaml", tmp_path / "program"
    manifest.write_text(yaml.safe_dump(manifest_of("hello")))
    program.write_bytes(catalog.program())
    words = ["render-cloud-init", str(manifest), "--content", f"program={program}"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("#cloud-config\n")
    program.write_bytes(b"another")
    assert main(words) == 1
    assert "another digest" in capsys.readouterr().err
