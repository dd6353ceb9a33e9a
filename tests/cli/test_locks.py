"""`duly locks`."""

from duly import Duly
from tests.cli.conftest import answer


def test_held_locks_are_listed(app, cli):
    holder = Duly(app.url)  # A command closes its application.
    holder.lock("done").acquire().release()
    with holder.lock("index", ttl=40), holder.lock("backup"):
        listed = answer(cli("locks", "list", "--json"))["locks"]
        shown = cli("locks", "list").stdout.splitlines()
        names = cli("locks", "list", "-q").stdout
    holder.close()

    assert [(lock["name"], lock["holder"], lock["fence"]) for lock in listed] == [
        ("backup", "tester", 1),
        ("index", "tester", 1),
    ]
    assert 30 < listed[1]["left_seconds"] <= 40
    assert shown[0].split() == ["LOCK", "HOLDER", "FENCE", "TIME", "LEFT"]
    assert shown[2].split()[:3] == ["index", "tester", "1"]
    assert names == "backup\nindex\n"


def test_an_empty_list_of_locks_prints_a_sentence(app, cli):
    result = cli("locks", "list")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "No lock is held" in result.stderr
