"""Files are written whole, where they are, as they were: links, modes, pipes and devices."""

import os
import stat
import threading

import pytest

from jaxcoreset.data.utils import write_whole


def write(path, text=b"new"):
    return write_whole(path, lambda file: file.write(text))


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    path = tmp_path / "a"
    for mode in (0o600, 0o640, 0o755):
        path.write_bytes(b"old")
        path.chmod(mode)
        assert write(path) == path
        assert path.read_bytes() == b"new"
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_mode_that_the_mask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed_and_stays(tmp_path, exists):
    (tmp_path / "far").mkdir()
    if exists:
        (tmp_path / "far" / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far/a")
    assert write(tmp_path / "link") == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path / "far") == ["a"]


def test_a_pipe_is_written_to(tmp_path):
    path, found = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    write(path, b"x" * 100_000)
    reader.join(10)
    assert found == [b"x" * 100_000]
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_is_written_to():
    write("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_is_write_protected_is_not_replaced(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o444)
    with pytest.raises(PermissionError, match="write-protected"):
        write(tmp_path / "a")


def test_an_error_names_the_file_and_leaves_the_old_one(tmp_path):
    path = tmp_path / "a"
    write(path, b"old")
    for error in (OSError("full"), OSError(28, "No space left on device"), KeyboardInterrupt()):

        def fail(file, error=error):
            file.write(b"half")
            raise error

        with pytest.raises(type(error)) as caught:
            write_whole(path, fail)
        if isinstance(error, OSError):
            assert caught.value.filename == str(path)
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(OSError, match="directory"):
        write(tmp_path)
