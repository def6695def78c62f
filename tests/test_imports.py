"""`server → stages → profiling`: each may import what stands right of it, and heavy packages stay in their place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("server", "stages", "profiling")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a file imports when it runs, relative ones resolved against the package root."""
    package = list(path.relative_to(ROOT).parts[:-1])
    found = set()
    for node in running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} if node.module else {f"{module}.{name.name}" for name in node.names}
    return found


def running(tree: ast.AST):
    """Every node below one, but for what only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from running(node)


def top(path: Path) -> set[str]:
    """The first component of each import."""
    return {name.removeprefix("duotone.").split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_imports_leftwards(path):
    at = FOLDERS.index(path.relative_to(ROOT).parts[0])
    assert not top(path) & set(FOLDERS[:at])


ALLOWED = {
    "torch": ("stages/talker/", "stages/code2wav/", "stages/cloning/", "stages/device.py", "profiling/profiler.py"),
    "fastapi": ("server/",),
    "starlette": ("server/",),
    "uvicorn": ("server/",),
    "vllm": ("stages/talker/vllm_", "profiling/profiler.py"),
}


@pytest.mark.parametrize("package", ALLOWED)
def test_heavy_packages_stay_where_they_belong(package):
    users = [str(path.relative_to(ROOT)) for path in FILES if package in top(path)]
    assert [user for user in users if not user.startswith(ALLOWED[package])] == []


def test_only_the_settings_read_the_environment():
    readers = [path for path in FILES if "os.environ" in path.read_text() or "getenv" in path.read_text()]
    # vLLM takes some of its settings from the environment alone; its start sets them in a worker process.
    # So does CUDA: which GPU is a worker's own.
    allowed = {"server/config.py", "stages/talker/vllm_start.py", "stages/device.py"}
    assert {str(path.relative_to(ROOT)) for path in readers} <= allowed
