"""Round trips from public bug reports (A01 to A26): what was uploaded, what the agent did, what must not come out.

Each is a pair of bash scripts. `$CANARY` names a file that nothing outside the agent's own commands may make.
Where the agent's own git is expected to be of no use (broken or hostile repositories) the scripts do without it.
"""

from __future__ import annotations

from dataclasses import dataclass

_COMMIT = "\ngit init -q -b main . && git add -A && git commit -qm base\n"


@dataclass(frozen=True)
class Case:
    title: str
    before: str
    agent: str
    absent: tuple[bytes, ...] = ()
    """Paths of the agent's tree that are not to be in the patch."""
    leak: tuple[bytes, ...] = ()
    """Bytes that must not be in the patch."""


def _py(code: str) -> str:
    return f"python3 - <<'END'\n{code}\nEND\n"


CASES = {
    "A01": Case(
        "a binary file changes, another is new",
        _py("open('picture','wb').write(bytes(range(256)) * 8)") + "echo one > text" + _COMMIT,
        _py("f = open('picture','r+b'); f.seek(700); f.write(b'\\0\\xff' * 9)\nopen('fresh','wb').write(bytes(300))")
        + "echo two >> text",
    ),
    "A02": Case(
        "hunks end in blank lines; the last line has no newline, gets one, loses one",
        r"printf 'a\nb\n\n\n\n' > blank; printf 'x\ny' > none; printf 'p\n' > some" + _COMMIT,
        r"printf 'a\nB\n\n\n\n' > blank; printf 'x\nz' > none; printf 'p' > some",
    ),
    "A03": Case(
        "CRLF changed, CRLF new, line ends mixed",
        r"printf 'a\r\nb\r\nc\r\n' > dos; printf 'a\r\nb\nc\rd\n' > mixed" + _COMMIT,
        r"printf 'a\r\nB\r\nc\r\n' > dos; printf 'n\r\n' > fresh; printf 'a\r\nb\nc\rd\r\ne\n' > mixed",
    ),
    "A04": Case(
        "nothing but the mode changes, both ways; a new executable",
        "echo run > on; echo run > off; chmod 755 off" + _COMMIT,
        "chmod +x on; chmod -x off; echo '#!/bin/sh' > tool; chmod 755 tool",
    ),
    "A05": Case(
        "an empty file is new, one is deleted, one is emptied",
        ": > gone; echo full > drained; echo k > kept" + _COMMIT,
        ": > __init__.py; rm gone; : > drained",
    ),
    "A06": Case(
        "links: to a folder, out of the tree, to nothing; retargeted; file to link and back",
        "mkdir d; echo in > d/f; echo t > t; ln -s d/f turned; echo real > to_link; ln -s t to_file" + _COMMIT,
        "ln -s d folder; ln -s /etc/passwd out; ln -s nowhere dangling; ln -sfn t turned\n"
        "rm to_link; ln -s d/f to_link; rm to_file; echo now > to_file",
        leak=(b"root:x:0:0",),
    ),
    "A07": Case(
        "deleted, renamed and edited; a file gives way to a folder and the other way round",
        "seq 1 80 > long; echo d > doomed; echo f > node; mkdir folder; echo i > folder/in" + _COMMIT,
        "git mv long moved; sed -i s/^40$/forty/ moved; git rm -q doomed; rm node; mkdir node; echo c > node/child\n"
        "rm -r folder; echo flat > folder",
    ),
    "A08": Case(
        "names with blanks, quotes, tab, newline, backslash, dash, ' b/', and bytes that are no UTF-8",
        _py(
            "import os\nos.mkdir('x b')\n"
            "for name in [b'a b', b'q\\'u\"o', b'back\\\\slash', 'caf\\u00e9 \\u30d5'.encode(), b'x b/y']:\n"
            "    open(name, 'wb').write(b'1\\n')"
        )
        + _COMMIT,
        _py(
            "for name in [b'a b', b'q\\'u\"o', b'back\\\\slash', 'caf\\u00e9 \\u30d5'.encode(), b'x b/y']:\n"
            "    open(name, 'ab').write(b'2\\n')\n"
            "odd = ['\\U0001f680'.encode(), b' ', b'\"', b':(top)x', b'*.log']\n"
            "for name in [b'tab\\there', b'new\\nline', b'-dash', b'latin\\xe9', *odd]:\n"
            "    open(name, 'wb').write(b'new\\n')"
        ),
    ),
    "A09": Case(
        "Latin-1 and Shift-JIS text",
        _py("open('l1','wb').write(b'# caf\\xe9\\nx = 1\\n'); open('sj','wb').write(b'\\x93\\xfa\\x96{\\n' * 3)")
        + _COMMIT,
        _py("open('l1','wb').write(b'# caf\\xe9\\nx = 2 # na\\xefve\\n'); open('sj','ab').write(b'\\x8c\\xea\\n')"),
    ),
    "A10": Case(
        "the agent commits some, stages some, leaves some alone",
        "for f in a b c; do echo 1 > $f; done" + _COMMIT,
        "echo 2 > a; git commit -qam wip; echo 2 > b; git add b; echo 2 > c; echo new > d",
    ),
    "A11": Case(
        "a repository without a commit, a file staged and changed again",
        "git init -q -b main .; echo one > f; git add f",
        "echo two >> f; echo g > g",
    ),
    "A12": Case("no repository at all", "echo 1 > a; mkdir s; echo 2 > s/b", "echo 3 >> a; rm s/b; echo n > s/n"),
    "A14": Case(
        "files of another owner, which git calls dubious",
        "echo 1 > a" + _COMMIT + "chown -R 12345:12345 . || true",
        "echo 2 > a; echo n > n; chown 12345 n || true",
    ),
    "A15": Case(
        "the upload's configuration bends the output of git diff",
        "seq 1 9 > n" + _COMMIT + "git config diff.noprefix true; git config diff.mnemonicPrefix true\n"
        "git config color.ui always; git config diff.context 0; git config diff.external 'echo EXTERNAL'",
        "sed -i s/^5$/five/ n; echo q > fresh",
        leak=(b"EXTERNAL", b"\x1b["),
    ),
    "A16": Case(
        "the upload's configuration runs commands: fsmonitor, filter, textconv, external diff, hooks",
        "echo 1 > a.dat; echo '*.dat filter=x diff=x' > .gitattributes" + _COMMIT + "mkdir -p .git/hooks\n"
        "for k in core.fsmonitor filter.x.clean filter.x.process diff.x.textconv diff.external core.sshCommand; do\n"
        '  git config $k "touch $CANARY; cat"; done\n'
        "for h in pre-commit post-checkout post-index-change; do\n"
        'printf "#!/bin/sh\\ntouch $CANARY\\n" > .git/hooks/$h\n'
        "chmod +x .git/hooks/$h; done",
        "echo 2 > a.dat; echo n > n",
    ),
    "A17": Case(
        "attributes that convert or hide: text=auto, eol, ident, working-tree-encoding, -diff",
        r"printf 'a\r\nb\r\n' > crlf.txt; printf '$Id$\nx\n' > id.txt; echo s > secret.txt"
        "\nprintf 'h\\n' | iconv -t UTF-16LE > u.txt\n"
        r"printf '* text=auto\n*.txt text eol=lf\nid.txt ident\nsecret.txt -diff\n' > .gitattributes"
        "\necho 'u.txt working-tree-encoding=UTF-16LE' >> .gitattributes" + _COMMIT,
        r"printf 'a\r\nB\r\n' > crlf.txt; printf '$Id$\ny\n' > id.txt; echo s2 > secret.txt"
        "\nprintf 'i\\n' | iconv -t UTF-16LE > u.txt",
    ),
    "A18": Case(
        "a required LFS filter that is not installed",
        "echo 1 > a; printf BIG > m.psd" + _COMMIT + "echo '*.psd filter=lfs diff=lfs -text' > .gitattributes\n"
        "git add .gitattributes; git commit -qm lfs; git config filter.lfs.clean 'git-lfs clean -- %f'\n"
        "git config filter.lfs.process 'git-lfs filter-process'; git config filter.lfs.required true",
        "echo 2 > a; printf BIGGER > m.psd; printf N > n.psd",
    ),
    "A20": Case(
        "new ignored files stay out; ignored files that were uploaded and edited are in",
        r"printf '__pycache__/\nnode_modules/\n*.log\n!kept.log\nlocal.cfg\n' > .gitignore; echo t > tracked.log"
        "\nmkdir sub; echo '/only_here' > sub/.gitignore; echo c > local.cfg; echo a > a.py\n"
        "git init -q -b main .; git add -A; git add -f tracked.log; git commit -qm base",
        "echo t2 > tracked.log; echo c2 > local.cfg; echo a2 > a.py; mkdir -p __pycache__ node_modules/p\n"
        "echo j > __pycache__/a.pyc; echo j > node_modules/p/i.js; echo l > new.log; echo k > kept.log\n"
        "echo x > sub/only_here; echo y > only_here; echo '*.py' >> .gitignore; echo b > b.py",
        absent=(b"__pycache__/a.pyc", b"node_modules/p/i.js", b"new.log", b"sub/only_here"),
    ),
    "A21": Case(
        "a stale index.lock of a git that was killed",
        "echo 1 > a" + _COMMIT,
        "echo 2 > a; echo n > n; : > .git/index.lock",
    ),
    "A22": Case(
        ".git is a file that points to nowhere",
        "echo 1 > a; echo 'gitdir: /home/u/main/.git/worktrees/w' > .git",
        "echo 2 > a; echo n > n",
    ),
    "A25": Case(
        "a rename of case only; names that fold together",
        "echo 1 > Readme.md; " + _py("open('caf\\u00e9','w').write('nfc\\n')") + _COMMIT,
        "mv Readme.md README.md; " + _py("open('cafe\\u0301','w').write('nfd\\n')"),
    ),
    "A26": Case(
        "content that looks like a patch or a mail",
        "echo x > p" + _COMMIT,
        r"printf -- '--- a/etc\n+++ b/etc\n@@ -1 +1 @@\n-x\n+y\ndiff --git a/q b/q\nGIT binary patch\nFrom 0\n' > p"
        r"; printf -- '-- \n' > sig",
    ),
    "A10b": Case(
        "the agent goes back to the upload: rebase, reset and a branch of its own leave no trace",
        "echo 1 > a; echo 1 > b" + _COMMIT,
        "git checkout -qb other; echo 2 > a; git commit -qam two; git checkout -q main; echo 3 > b; git stash -q",
    ),
    "A20b": Case(
        "rules that the agent wrote do not count",
        "echo a > a" + _COMMIT,
        "echo '*' > .gitignore; echo b > b",
    ),
    "A20c": Case("rules that match nothing new", "echo '*.log' > .gitignore; echo a > a", "echo b > b; echo c >> a"),
    "A22b": Case(
        "repositories in folders: their files are in, their .git never",
        "mkdir lib; cd lib; git init -q -b main .; echo x > x; git add x; git commit -qm s; cd ..; echo r > r"
        + _COMMIT,
        "echo y >> lib/x; cd lib; git commit -qam t; echo z > z",
        leak=(b"Subproject",),
    ),
}
