# SPDX-License-Identifier: Apache-2.0
import pytest
import ways


@pytest.fixture(scope="session")
def clone(once):
    """A copy of the repository that tests only read, except for its build directory. Its name
    contains a blank."""
    return once("clone", lambda folder: ways.copy(folder / "a clone"))


@pytest.fixture
def checkout(tmp_path):
    """A copy of the repository that one test may edit and build in."""
    return ways.copy(tmp_path / "a clone")


@pytest.fixture(scope="session")
def home(clone, once):
    """Home directory of a user who has installed kf in ~/.local, as docs/install.md describes."""

    def installed(folder):
        ways.shell(ways.snippet("install"), clone, folder)
        return folder

    return once("home", installed)


@pytest.fixture(scope="session")
def archive(once):
    """The release archive, built in a clean git checkout."""

    def made(folder):
        folder = ways.copy(folder / "kf")
        ways.commit(folder)
        ways.run("make", "dist", cwd=folder)
        assert ways.run("git", "status", "--porcelain", cwd=folder) == ""
        return folder / f"build/dist/kf-{ways.VERSION}.tar.gz"

    return once("archive", made)
