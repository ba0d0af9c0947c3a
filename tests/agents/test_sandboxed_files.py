"""Access to the files in one folder and no others, for any path, and while other processes swap files."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agents import sandboxed_files
from holdfast.agents.sandboxed_files import TEMPORARY_NAME, Entry, SandboxedFolder
from holdfast.errors import PathRefused, UsageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="refused there")

SECRET = b"nobody inside may see this"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder next to the root, which must not be read or written."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(SECRET)
    return tmp_path / "outside"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "file").write_bytes(b"inside")
    return tmp_path / "root"


@pytest.fixture
def root(folder: Path) -> SandboxedFolder:
    return SandboxedFolder(folder)


def refused(root: SandboxedFolder, path: str) -> set[str]:
    """The errors of all operations with this path, none of which may succeed."""
    told: set[str] = set()
    for attempt in (
        lambda: root.read(path, 1000),
        lambda: root.write(path, b"changed"),
        lambda: root.compare_and_swap(path, SECRET, b"changed"),
    ):
        with pytest.raises(PathRefused) as error:
            attempt()
        told.add(str(error.value))
    return told


# Paths


@pytest.mark.parametrize(
    "path",
    [
        "../outside/file",
        "sub/../../outside/file",
        "sub/../sub/file",
        "..",
        "./../outside/file",
        "sub/..",
        "//outside/file",
        "/",
        "~/file",
        "~",
        "C:/outside/file",
        "c:file",
        "C:\\outside\\file",
        "..\\outside\\file",
        "\\\\server\\share",
        "sub\\file",
        "sub/file\0",
        "\0",
        "a\nb",
        "a\x7fb",
        "\ud800",
        "x" * 2001,
        "a/" * 1001 + "a",
        "x" * 256,
        "",
        ".",
        "./",
        "sub",
        "sub/",
        "sub/file/",
        "sub/file/more",
        TEMPORARY_NAME,
        f"sub/{TEMPORARY_NAME}",
    ],
)
def test_a_path_that_leads_out_or_to_no_file_is_refused(root: SandboxedFolder, outside: Path, path: str):
    for told in refused(root, path):
        assert len(told) < 500
        assert str(outside.parent) not in told
    assert (outside / "file").read_bytes() == SECRET


def test_an_absolute_path_is_refused_also_to_a_file_inside(root: SandboxedFolder, folder: Path, outside: Path):
    refused(root, str(outside / "file"))
    refused(root, str(folder / "sub" / "file"))


@pytest.mark.parametrize(
    "path", ["%2e%2e/outside/file", "..%2foutside%2ffile", "‥/outside/file", "$HOME", "~root", "..."]
)
def test_nothing_is_decoded_or_expanded(root: SandboxedFolder, folder: Path, outside: Path, path: str):
    with pytest.raises(PathRefused, match="There is no"):
        root.read(path, 1000)
    root.write(path, b"new")
    assert folder.joinpath(*path.split("/")).read_bytes() == b"new"
    assert [one.name for one in outside.iterdir()] == ["file"]


def test_dots_and_doubled_slashes_change_nothing(root: SandboxedFolder):
    assert root.read("./sub//./file", 1000) == b"inside"


# Links


def test_a_symbolic_link_is_never_followed(root: SandboxedFolder, folder: Path, outside: Path):
    (folder / "file-link").symlink_to(outside / "file")
    (folder / "folder-link").symlink_to(outside)
    (folder / "inner-link").symlink_to("sub")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to("..")
    paths = [
        "file-link",
        "folder-link/file",
        "inner-link/file",
        "dangling",
        "loop",
        "up/outside/file",
        "folder-link/new",
    ]
    for path in paths:
        assert all("symbolic link" in told for told in refused(root, path)), path
    with pytest.raises(PathRefused, match="symbolic link"):
        root.list("folder-link")
    assert (outside / "file").read_bytes() == SECRET
    assert not (outside / "new").exists()
    assert not (folder / "nowhere").exists()


def test_a_walk_lists_links_and_does_not_follow_them(root: SandboxedFolder, folder: Path, outside: Path):
    (folder / "link").symlink_to(outside)
    assert list(root.walk()) == [
        Entry("link", "link", 0),
        Entry("sub", "folder", 0),
        Entry("sub/file", "file", 6),
    ]


def test_writing_does_not_go_through_a_hard_link(root: SandboxedFolder, folder: Path, outside: Path):
    os.link(outside / "file", folder / "hard")
    assert root.read("hard", 1000) == SECRET
    root.write("hard", b"changed")
    assert ((folder / "hard").read_bytes(), (outside / "file").read_bytes()) == (b"changed", SECRET)


def test_the_roots_own_path_may_have_links_which_are_resolved_once(tmp_path: Path, folder: Path, outside: Path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    root = SandboxedFolder(link)
    link.unlink()
    link.symlink_to(outside)
    assert root.read("sub/file", 1000) == b"inside"


def test_a_root_that_is_swapped_for_a_link_is_refused(root: SandboxedFolder, folder: Path, outside: Path):
    folder.rename(folder.with_name("away"))
    folder.symlink_to(outside)
    refused(root, "file")


# Things that are no files


def test_special_files_are_refused_at_once(root: SandboxedFolder, folder: Path, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)  # the path of a socket has to be short
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind("socket")
        for path in ("pipe", "socket"):
            assert all("no plain file" in told for told in refused(root, path))
    assert {entry.path: entry.kind for entry in root.list()} == {"pipe": "other", "socket": "other", "sub": "folder"}


def test_a_pipe_that_replaces_a_file_does_not_block(
    root: SandboxedFolder, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    looked = sandboxed_files._check_regular_file

    def swap(found: os.stat_result, path: str) -> None:
        looked(found, path)
        (folder / "sub" / "file").unlink()
        os.mkfifo(folder / "sub" / "file")
        monkeypatch.setattr(sandboxed_files, "_check_regular_file", looked)

    monkeypatch.setattr(sandboxed_files, "_check_regular_file", swap)
    with pytest.raises(PathRefused, match="no plain file"):
        root.read("sub/file", 1000)


def test_a_device_is_refused(root: SandboxedFolder, folder: Path):
    try:
        os.mknod(folder / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except OSError:
        pytest.skip("only root makes devices")
    assert all("no plain file" in told for told in refused(root, "zero"))


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_refused(root: SandboxedFolder, folder: Path):
    (folder / "sub" / "file").chmod(0)
    with pytest.raises(PathRefused, match="permission denied"):
        root.read("sub/file", 1000)


# Reading


def test_a_file_above_the_limit_is_refused_with_its_size(root: SandboxedFolder):
    assert root.read("sub/file", 6) == b"inside"
    with pytest.raises(PathRefused, match=r"'sub/file' is too large: it has 6 bytes, and 5 are allowed"):
        root.read("sub/file", 5)


def test_a_folder_is_listed_in_order_and_to_its_depth(root: SandboxedFolder, folder: Path):
    (folder / "a" / "b" / "c").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_bytes(b"12")
    assert [entry.path for entry in root.walk(max_depth=2)] == ["a", "a/b", "sub", "sub/file"]
    assert [entry.path for entry in root.walk("a")] == ["a/b", "a/b/c", "a/b/file"]
    assert [entry.path for entry in root.walk("a", exclude=["b"])] == ["a/b"]
    with pytest.raises(PathRefused, match=r"'sub/file': a part of it \('file'\) is no folder"):
        root.list("sub/file")


def test_names_that_are_not_text_are_skipped(root: SandboxedFolder, folder: Path):
    try:
        (folder / os.fsdecode(b"bad\xff")).touch()
    except OSError:
        pytest.skip("this filesystem takes only text")
    (folder / "line\nfeed").touch()
    assert [entry.path for entry in root.list()] == ["sub"]


def test_a_folder_with_too_many_names_is_marked(root: SandboxedFolder, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandboxed_files, "MAX_NAMES", 3)
    for name in "abc":
        (folder / "sub" / name).touch()
    *listed, last = root.list("sub")
    assert len(listed) == 3
    assert last == Entry("sub", "folder", 0, is_truncated=True)
    (folder / "sub" / "a").unlink()
    assert not any(entry.is_truncated for entry in root.list("sub"))


def test_a_walk_opens_no_more_folders_than_it_may(root: SandboxedFolder, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandboxed_files, "MAX_DEPTH", 3)
    (folder / "a" / "b" / "c" / "d").mkdir(parents=True)
    assert [entry.path for entry in root.walk(max_depth=100)] == ["a", "a/b", "a/b/c", "sub", "sub/file"]


def test_nothing_stays_open(root: SandboxedFolder, folder: Path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("open files cannot be counted here")
    before = os.listdir("/proc/self/fd")
    for path in ("sub/file", "sub", "no", "sub/no/no", "sub/file/x"):
        with contextlib.suppress(PathRefused):
            root.read(path, 1)
        with contextlib.suppress(PathRefused):
            root.write(path, b"x")
    next(root.walk()).path  # given up in the middle
    list(root.walk())
    assert len(os.listdir("/proc/self/fd")) == len(before)


# Writing


def test_a_file_keeps_its_permissions_and_a_new_one_has_the_usual(root: SandboxedFolder, folder: Path):
    (folder / "sub" / "file").chmod(0o750)
    root.write("sub/file", b"changed")
    assert stat.S_IMODE((folder / "sub" / "file").stat().st_mode) == 0o750
    umask = os.umask(0o027)
    try:
        root.write("deep/er/new", b"")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((folder / "deep" / "er" / "new").stat().st_mode) == 0o640


def test_a_read_only_file_is_left_as_it_is(root: SandboxedFolder, folder: Path):
    (folder / "sub" / "file").chmod(0o444)
    with pytest.raises(PathRefused, match="read-only"):
        root.write("sub/file", b"changed")
    assert (folder / "sub" / "file").read_bytes() == b"inside"


def test_a_write_that_fails_leaves_what_was_there(root: SandboxedFolder, folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PathRefused, match="the disk is full"):
        root.write("sub/file", b"changed")
    assert sorted(os.listdir(folder / "sub")) == ["file"]
    assert (folder / "sub" / "file").read_bytes() == b"inside"


def test_the_temporary_file_of_a_killed_writer_is_hidden_and_replaced(
    root: SandboxedFolder, folder: Path, outside: Path
):
    (folder / "sub" / TEMPORARY_NAME).symlink_to(outside / "file")
    assert [entry.path for entry in root.list("sub")] == ["sub/file"]
    root.write("sub/file", b"changed")
    assert os.listdir(folder / "sub") == ["file"]
    assert (outside / "file").read_bytes() == SECRET


def test_an_exchange_needs_what_was_there_before(root: SandboxedFolder, folder: Path):
    assert root.compare_and_swap("sub/file", b"inside", b"changed")
    assert not root.compare_and_swap("sub/file", b"inside", b"changed again")
    assert not root.compare_and_swap("sub/no", b"", b"changed")
    assert (folder / "sub" / "file").read_bytes() == b"changed"
    assert os.listdir(folder / "sub") == ["file"]


@pytest.mark.parametrize("locks", [True, False])
def test_exchanges_at_the_same_time_lose_nothing(
    root: SandboxedFolder, folder: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
):
    """Each of four threads adds its share to a number in a file; also where directories cannot be locked."""

    def add() -> None:
        done = 0
        while done < 25:
            before = root.read("sub/file", 100)
            done += root.compare_and_swap("sub/file", before, b"%d" % (int(before) + 1))

    def no_flock(*_: int) -> None:
        raise OSError(9, "Bad file descriptor")

    if not locks:
        monkeypatch.setattr(sandboxed_files.fcntl, "flock", no_flock)
    (folder / "sub" / "file").write_bytes(b"0")
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "sub" / "file").read_bytes() == b"100"


def test_the_wait_for_a_lock_is_bounded(root: SandboxedFolder, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandboxed_files, "LOCK_TIMEOUT_S", 0.02)
    held = os.open(folder / "sub", os.O_RDONLY)
    sandboxed_files.fcntl.flock(held, sandboxed_files.fcntl.LOCK_EX)
    try:
        with pytest.raises(PathRefused, match="keeps its folder locked"):
            root.write("sub/file", b"changed")
    finally:
        os.close(held)
    root.write("sub/file", b"changed")


# The root


def test_a_root_may_go_and_come_back(root: SandboxedFolder, folder: Path, caplog: pytest.LogCaptureFixture):
    folder.rename(folder.with_name("away"))
    for told in refused(root, "sub/file"):
        assert "is not there" in told
        assert str(folder) not in told
    assert str(folder) in caplog.text, "a person is told where"
    assert not folder.exists(), "a root is never made: it may be a disk that is not mounted"
    folder.with_name("away").rename(folder)
    assert root.read("sub/file", 1000) == b"inside"


def test_a_system_without_dir_fd_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "supports_dir_fd", set())
    with pytest.raises(UsageError, match="dir_fd"):
        SandboxedFolder(folder)


# Races

SWAP = """
import os, shutil, sys
place, aside, link = sys.argv[1:]
os.symlink(link, aside + ".link")
print("begun", flush=True)

def move(source, target):
    while True:
        try:
            return os.rename(source, target)
        except OSError:  # a writer has made a folder there meanwhile
            shutil.rmtree(target, ignore_errors=True)

while True:
    os.rename(place, aside)
    move(aside + ".link", place)
    os.rename(place, aside + ".link")
    move(aside, place)
"""
"""Swaps a thing for a link to somewhere outside, and back, as fast as it can."""


@contextlib.contextmanager
def swapping(place: Path, link: Path) -> Iterator[None]:
    command = [sys.executable, "-I", "-S", "-c", SWAP, str(place), str(place.parent.parent / "aside"), str(link)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_who_swaps_a_link_in_while_we_work_gains_nothing(root: SandboxedFolder, folder: Path, outside: Path, what: str):
    """With a check of the path before its use, this leaks."""
    place, link = (folder / "sub", outside) if what == "folder" else (folder / "sub" / "file", outside / "file")
    enough = 100 if what == "folder" else 1500  # there is less to be done
    came_of_it: Counter[str] = Counter()
    with swapping(place, link):
        while min(came_of_it["read"], came_of_it["refused"]) < enough and came_of_it.total() < 100_000:
            try:
                assert root.read("sub/file", 1000) in (b"inside", b"written")
                came_of_it["read"] += 1
                if what == "folder":
                    root.write("sub/new", b"written")
                    assert {entry.path for entry in root.walk("sub")} <= {"sub/file", "sub/new"}
            except PathRefused:
                came_of_it["refused"] += 1
    assert min(came_of_it["read"], came_of_it["refused"]) >= enough, f"it was hardly swapped: {came_of_it}"
    assert {one.name: one.read_bytes() for one in outside.iterdir()} == {"file": SECRET}
