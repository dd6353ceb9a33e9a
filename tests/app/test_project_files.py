"""Settings in a pyproject.toml that another user owns or can change are refused."""

import os

import pytest

from duly.errors import BadOption
from duly.settings import load_settings

STRANGER = 54_321
SETTINGS = "[tool.duly]\nconcurrency = 2\nurl = 'sqlite:///their.db'\n"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def above(tmp_path, monkeypatch):
    """A folder above the current one, and nothing of duly in the environment."""
    for name in [name for name in os.environ if name.startswith("DULY_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SUDO_UID", raising=False)
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return tmp_path


def write_project(folder, text=SETTINGS, *, owner=None, mode=0o644):
    file = folder / "pyproject.toml"
    file.write_text(text)
    file.chmod(mode)
    if owner is not None:
        os.chown(file, owner, owner)
    return file


@as_root
@pytest.mark.parametrize("place", [".", "mine"])
def test_a_strangers_file_is_refused(above, place):
    file = write_project(above / place, owner=STRANGER)

    with pytest.raises(BadOption, match=f"belongs to user {STRANGER}") as refused:
        load_settings()

    assert str(refused.value).startswith(f"{file} ")
    assert f"DULY_PYPROJECT={file}" in str(refused.value)


def test_a_world_writable_file_is_refused(above):
    file = write_project(above, mode=0o666)

    with pytest.raises(BadOption, match=f"every user can write to {file}"):
        load_settings()

    file.chmod(0o664)
    assert load_settings().concurrency == 2


@as_root
def test_a_file_whose_owner_changes_is_checked_again(above):
    file = write_project(above)
    assert load_settings().concurrency == 2

    os.chown(file, STRANGER, STRANGER)

    with pytest.raises(BadOption, match=f"belongs to user {STRANGER}"):
        load_settings()


@as_root
def test_a_strangers_link_to_the_users_own_file_is_refused(above, tmp_path):
    (tmp_path / "old").mkdir()
    write_project(tmp_path / "old")
    link = above / "pyproject.toml"
    link.symlink_to(tmp_path / "old" / "pyproject.toml")
    assert load_settings().concurrency == 2

    os.lchown(link, STRANGER, STRANGER)

    with pytest.raises(BadOption, match=f"belongs to user {STRANGER}"):
        load_settings()


@as_root
def test_a_strangers_file_without_a_duly_table_is_ignored(above):
    write_project(above, "[tool.other]\nx = 1\n", owner=STRANGER)

    assert load_settings().origins == {}


@as_root
def test_a_nearer_file_hides_a_strangers(above):
    write_project(above, owner=STRANGER)
    write_project(above / "mine", "")

    assert load_settings().origins == {}


@as_root
def test_root_trusts_the_file_of_the_user_who_called_sudo(above, monkeypatch):
    write_project(above, owner=STRANGER)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))

    assert load_settings().concurrency == 2


@as_root
@pytest.mark.parametrize("named", ["{above}/pyproject.toml", "../pyproject.toml"])
def test_a_file_that_the_environment_names_is_trusted(above, monkeypatch, named):
    """This is the case of root in a container with a folder of the host."""
    file = write_project(above, owner=STRANGER, mode=0o666)
    monkeypatch.setenv("DULY_PYPROJECT", named.format(above=above))

    settings = load_settings()

    assert settings.concurrency == 2
    assert settings.url == f"sqlite:///{above}/their.db"
    assert settings.origins["url"] == str(file)


def test_the_environment_can_disable_the_project_file(above, monkeypatch):
    write_project(above, mode=0o666)
    monkeypatch.setenv("DULY_PYPROJECT", "/dev/null")

    assert load_settings().origins == {}


def test_a_file_that_the_environment_names_must_exist(above, monkeypatch):
    monkeypatch.setenv("DULY_PYPROJECT", "missing.toml")

    with pytest.raises(BadOption, match=r"missing\.toml \(DULY_PYPROJECT\) cannot be read"):
        load_settings()


def test_a_pipe_in_place_of_the_file_is_refused_without_blocking(above):
    os.mkfifo(above / "pyproject.toml")

    with pytest.raises(BadOption, match="cannot be read: it is not a regular file"):
        load_settings()
