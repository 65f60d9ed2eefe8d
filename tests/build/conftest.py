# SPDX-License-Identifier: Apache-2.0
import pytest
import ways


@pytest.fixture(scope="session")
def clone(tmp_path_factory):
    """A copy of the repository that tests only read, apart from its build directory. Its name has a blank."""
    return ways.copy(tmp_path_factory.mktemp("clone") / "a clone")


@pytest.fixture
def checkout(tmp_path):
    """One that a test may edit and build in."""
    return ways.copy(tmp_path / "a clone")


@pytest.fixture(scope="session")
def home(clone, tmp_path_factory):
    """The home directory of a user who has installed kf in ~/.local, as docs/install.md says."""
    folder = tmp_path_factory.mktemp("home")
    ways.shell(ways.snippet("install"), clone, folder)
    return folder


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """The release archive, made in a clean git checkout."""
    folder = ways.copy(tmp_path_factory.mktemp("release") / "kf")
    ways.commit(folder)
    ways.run("make", "dist", cwd=folder)
    assert ways.run("git", "status", "--porcelain", cwd=folder) == ""
    return folder / f"build/dist/kf-{ways.VERSION}.tar.gz"
