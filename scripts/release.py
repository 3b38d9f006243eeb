"""Makes a release but for its upload: `make release`, which runs lint, types, tests and docs first.

It builds the last commit in a temporary folder, with README's links made absolute, checks the
metadata, installs the wheel into an empty environment, and runs README's example there against
`pipecat-hedge simulate`. The files come into `dist/`. It ends with what is left to the publisher,
and with status 1 if the files must not be published.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
URLS = ("Repository", "Documentation", "Changelog", "Issues")


def run(*command: object, cwd: Path = ROOT, **env: str) -> str:
    """Run a command; returns what it prints, or ends the release with what it says."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean | env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"release: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def problems(project: dict[str, object]) -> list[str]:
    """Return what forbids to publish this commit."""
    found: list[str] = []
    version = project["version"]
    if run("git", "status", "--porcelain"):
        found.append("there are uncommitted changes: commit them, the last commit is built")
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if newest is None or newest[1] != version:
        name = newest[1] if newest else "nothing"
        found.append(f"CHANGELOG.md begins with [{name}]: write [{version}] and the date")
    tested = re.search(r"^pipecat-ai==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    if (
        tested is None
        or f"Tested with Pipecat {tested[1]}." not in (ROOT / "README.md").read_text()
    ):
        found.append("README.md: `Tested with Pipecat` is not the version in constraints.txt")
    return found


def left_to_publisher(project: dict[str, object]) -> list[str]:
    """Return what only the publisher can do."""
    urls, version = project.get("urls"), project["version"]
    missing = [name for name in URLS if not isinstance(urls, dict) or name not in urls]
    left = [f"fill in {name} in [project.urls] of pyproject.toml" for name in missing]
    if "Repository" in missing:
        left[0] += "; until then README's links are relative, and dead where it is listed"
    if "site_url:" not in re.sub(r"#.*", "", (ROOT / "mkdocs.yml").read_text()):
        left.append("fill in site_url and repo_url in mkdocs.yml")
    if not any("email" in author for author in project["authors"]):  # type: ignore[attr-defined]
        left.append("name yourself in `authors` of pyproject.toml, if you want to be named")
    left.append("make test-all and make test-vllm, which take longer, if .ci/run has not run")
    return [
        *left,
        f"git tag v{version}, and push it",
        "twine upload dist/*, and publish the folder out/docs",
        "list it with Pipecat's community: docs/releasing.md",
    ]


def with_absolute_links(readme: str, repository: str, tag: str) -> str:
    """Make links and pictures absolute, shaped as on the common forges."""
    there = r"(\[[^\]]*\]\()(?!https?:|#)"
    readme = re.sub(rf"!{there}", rf"!\1{repository}/raw/{tag}/", readme)
    return re.sub(there, rf"\1{repository}/blob/{tag}/", readme)


def build(source: Path, project: dict[str, object], folder: Path) -> Path:
    """Build both files of a copy of the sources; returns their folder."""
    urls = project.get("urls")
    repository = urls.get("Repository") if isinstance(urls, dict) else None
    if repository:
        readme = source / "README.md"
        tag = f"v{project['version']}"
        readme.write_text(with_absolute_links(readme.read_text(), repository.rstrip("/"), tag))
    python = environment(folder / "build", "build", "twine")
    run(python, "-m", "build", "--outdir", folder / "dist", source)
    print(run(python, "-m", "twine", "check", "--strict", *(folder / "dist").iterdir()).strip())
    return folder / "dist"


def environment(folder: Path, *packages: object) -> Path:
    """Make an environment of some packages, at the tested versions; returns its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", *quiet, "-c", ROOT / "constraints.txt", *packages)
    return python


def try_wheel(wheel: Path, folder: Path) -> str:
    """Run README's example from the wheel, against its simulator; returns what it prints."""
    python = environment(folder / "user", wheel)
    print(run(python.parent / "pipecat-hedge", "--version", cwd=folder).strip())
    environment(folder / "user", "pipecat-ai[anthropic,openai]")
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert program is not None
    (folder / "race.py").write_text(program[1])
    simulate = (python.parent / "pipecat-hedge", "simulate", "--port", "0")
    with subprocess.Popen(simulate, cwd=folder, stdout=subprocess.PIPE, text=True) as simulator:
        try:
            assert simulator.stdout is not None
            address = re.search(r"http://[\d.:]+", simulator.stdout.readline())
            assert address is not None, "the simulator has not started"
            keys = {"OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any"}
            urls = {
                "OPENAI_BASE_URL": f"{address[0]}/v1",
                "ANTHROPIC_BASE_URL": address[0],
            }
            quiet = {"LOGURU_LEVEL": "ERROR", "PIPECAT_HEDGE_STATS": "off"}
            printed = run(python, "race.py", cwd=folder, **keys, **urls, **quiet).strip()
        finally:
            simulator.terminate()
    if not re.match(r"(openai|claude) after \d", printed):
        sys.exit(f"release: README's example prints {printed!r}")
    return printed


def main() -> int:
    """Make the release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = problems(project)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").mkdir()
        run("git", "archive", "--output", folder / "source.tar", "HEAD")
        run("tar", "-xf", folder / "source.tar", "-C", folder / "source")
        built = build(folder / "source", project, folder)
        (wheel,) = built.glob("*.whl")
        print(f"README's example: {try_wheel(wheel, folder)}")
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(built, ROOT / "dist")
    print("built:", *sorted(f"dist/{path.name}" for path in (ROOT / "dist").iterdir()))
    print("\nLeft to the publisher:", *left_to_publisher(project), sep="\n- ")
    if found:
        print("\nNot to be published yet:", *found, sep="\n- ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
