from __future__ import annotations

from pathlib import Path

from sipd.machine_names import machine_names

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 192.168.1.0/24 2 0 2
        |-- 192.168.1.0
           /24 link UNICAST
        |-- 192.168.1.20
           /32 host LOCAL
        |-- 192.168.1.255
           /32 link BROADCAST
        |-- 127.0.0.1
           /32 host LOCAL
Local:
        |-- 192.168.1.20
           /32 host LOCAL
"""
IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000020 02 40 00 80     eth0
20010db8000000000000000000000020 02 40 00 00     eth0
20010db8000000000000000000000abc 02 40 00 01     eth0
fe800000000000000000000000000020 02 40 20 80     eth0
"""


def test_names_and_lasting_addresses_come_each_once(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(FIB_TRIE)
    (tmp_path / "if_inet6").write_text(IF_INET6)
    assert machine_names("Board.example.", tmp_path) == [
        *("board.example", "board", "board.local", "localhost", "127.0.0.1", "::1"),
        *("192.168.1.20", "fd00::20", "2001:db8::20"),
    ]


def test_a_kernel_without_these_tables_leaves_the_names(tmp_path: Path) -> None:
    assert machine_names("board", tmp_path) == ["board", "board.local", "localhost", "127.0.0.1", "::1"]
