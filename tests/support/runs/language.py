# SPDX-License-Identifier: Apache-2.0
"""Checks the language of comments, docstrings and pages that a program can see.

    python tests/support/runs/language.py [--long] [PATH...]    default: all files of the repository

Reports comments and docstrings that open without a subject, private identifiers for which the field
has a word, lines over 100 columns, and files over 500 lines. With --long, lists sentences of more
than 25 words (this is advice and never fails).
"""

import ast
import functools
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[3]
COLUMNS = 100
LINES = 500
WORDS = 25
C_FILES = (".h", ".c", ".cu", ".cuh", ".cpp", ".hpp")
OPENING = re.compile(r"(What|Of|Those|That|As|By|In|Where|Whether it is that)\b(?!-)", re.I)
# A comment may begin with the file's own path, a marker, or markup, before its first sentence.
SKIPPED = re.compile(r"^(?:[\s*!/<>#-]|kf/[\w/.]+:|\[\w+\]|`[^`]*`:|\w+:(?=\s))*")
# Generated: pages, results of runs, headers to compare with.
GENERATED = re.compile(r"docs/(reference|performance)/|tests/golden/|bench/results/")
NOT_PROSE = re.compile(r"SPDX-|clang-format|fmt: |noqa|type: ignore|pragma|===|---|in: |explain: ")

# (private identifier, what the field calls it)
PRIVATE = (
    (r"kfi_ring\w*|KFI_RING\w*", "kfi_pipeline_*"),
    (r"(?!alibi_slopes)\w*_?slopes", "dacc"),  # an argument of flash-attn has that name
    (r"(kfi_)?way", "schedule"),
    (r"in_registers == 3", "an enumerator of the schedule"),
    (r"(kfi_)?thirds", "a three-vector kernel"),
    (r"(is_)?lone", "sole launcher"),
    (r"twins?", "companion function"),
    (r"said", "described"),
    (r"kfi_lookup\w*|KFI_LOOKUP\w*|Lookup(C|Cuda|Kernel)?", "embedding"),
    (r"kfi_pairs\w*|KFI_PAIRS\w*|Pairs(C|Cuda|Kernel)?", "rope"),
    (r"(kfi_)?normed_lookup\w*|NormedLookup\w*", "embedding_layer_norm"),
    (r"(kfi_)?normed_pairs\w*|NormedPairs\w*", "rope_norm"),
    (r"(kfi_)?reduce_place\w*|ReducePlace\w*", "argreduce"),
)
IDENTIFIERS = [(re.compile(rf"(?<![\w-])(?:{word})(?![\w-])"), better) for word, better in PRIVATE]
ANY_IDENTIFIER = re.compile(rf"(?<![\w-])(?:{'|'.join(word for word, _ in PRIVATE)})(?![\w-])")
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def python_comments(text):
    """Yields (line, comment) for docstrings and for comments of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                yield node.body[0].lineno, doc
    found = [t for t in prose(text) if t.type == tokenize.COMMENT]
    yield from joined((t.start[0], t.start[1], t.string.lstrip("#"), t.line) for t in found)


@functools.lru_cache(1)
def prose(text):
    """Returns the comments and strings of a Python file as tokens."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t for t in tokens if t.type in (tokenize.COMMENT, tokenize.STRING)]


def joined(comments):
    """Joins comments of consecutive lines that begin in the same column and hold nothing else."""
    block = None
    for line, column, text, source in comments:
        alone = source.lstrip().startswith(("#", "//"))
        if block and alone and block[2] and line == block[1] + 1 and column == block[3]:
            block = (block[0], line, True, column, f"{block[4]}\n{text}")
            continue
        if block:
            yield block[0], block[4]
        block = (line, line, alone, column, text)
    if block:
        yield block[0], block[4]


def c_comments(text):
    """Yields (line, comment) of a C, CUDA or template file."""
    found = []
    for m in COMMENT.finditer(text):
        if m[0][0] in "\"'" or m[0].startswith("//%"):
            continue
        line = text.count("\n", 0, m.start()) + 1
        start = text.rfind("\n", 0, m.start()) + 1
        source = text[start : text.find("\n", m.start())]
        body = m[0][2:-2] if m[0].startswith("/*") else m[0].lstrip("/#")
        if m[0].startswith("/*"):
            yield line, body
        else:
            found.append((line, m.start() - start, body, source))
    yield from joined(found)
    for m in re.finditer(r"\{#(.*?)#\}", text, re.S):
        yield text.count("\n", 0, m.start()) + 1, m[1]


def hash_comments(text):
    """Yields (line, comment) of a TOML, Meson or make file."""
    lines = text.split("\n")
    found = [
        (i, line.index("#"), line.lstrip().lstrip("#"), line)
        for i, line in enumerate(lines, 1)
        if line.lstrip().startswith("#")
    ]
    yield from joined(found)


def comments(path, text):
    """Yields (line, text) for each comment, docstring or paragraph of a file."""
    if path.suffix == ".py":
        yield from python_comments(text)
    elif path.suffix in C_FILES or path.suffix == ".j2":
        yield from c_comments(text)
    elif path.suffix == ".toml" or path.name in ("Makefile", "meson.build"):
        yield from hash_comments(text)


def openings(path, text):
    """Yields (line, problem) for comments that open without a subject."""
    for line, comment in comments(path, text):
        first = SKIPPED.sub("", comment.strip(), count=1)
        if not NOT_PROSE.search(comment.split("\n")[0]) and OPENING.match(first):
            yield line, f'opens with "{first.split()[0]}": {first.splitlines()[0][:60]}'


def identifiers(path, text):
    """Yields (line, problem) for private identifiers."""
    if path.suffix == ".md":
        return
    for number, line in enumerate(code(path, text).split("\n"), 1):
        for pattern, better in IDENTIFIERS if ANY_IDENTIFIER.search(line) else ():
            if found := pattern.search(line):
                yield number, f"{found[0]}: write {better}"


def blank(text):
    """Replaces everything but line ends by blanks."""
    return re.sub(r"[^\n]", " ", text)


def code(path, text):
    """Returns the text without comments, docstrings and strings that are not one identifier."""

    def kept(literal):
        return literal if re.fullmatch(r"""['"][\w{}]+['"]""", literal) else blank(literal)

    if path.suffix == ".py":
        lines = text.split("\n")
        for token in prose(text):
            (first, begin), last = token.start, token.end[0]
            fill = kept(token.string).split("\n")
            for i, part in zip(range(first, last + 1), fill, strict=True):
                start = begin if i == first else 0
                lines[i - 1] = lines[i - 1][:start] + part + lines[i - 1][start + len(part) :]
        return "\n".join(lines)
    if path.suffix in C_FILES or path.suffix == ".j2":
        text = re.sub(r"\{#.*?#\}", lambda m: blank(m[0]), text, flags=re.S)
        return COMMENT.sub(
            lambda m: (
                m[0] if m[0].startswith("//%") else kept(m[0]) if m[0][0] in "\"'" else blank(m[0])
            ),
            text,
        )
    return re.sub(r"(?m)^\s*#.*$", lambda m: blank(m[0]), text)


def wide(path, text):
    """Yields (line, problem) for lines over 100 columns, prototypes and tables excepted."""
    page = path.name.endswith((".md", ".md.j2"))
    for number, line in enumerate(text.split("\n"), 1):
        table = page and line.lstrip().startswith("|")
        if len(line) > COLUMNS and not table and not prototype(line):
            yield number, f"has {len(line)} columns"


def tall(path, text):
    """Yields (line, problem) for a file over 500 lines."""
    if (lines := text.count("\n")) > LINES:
        yield LINES + 1, f"the file has {lines} lines"


def prototype(line):
    """True for a generated function's declaration, which stands on one line."""
    return re.match(
        r"\s*(template <|static |size_t |kf_result_t |extern )?[\w <>*=]*\bkf_\w+\(", line
    )


def sentences(path, text):
    """Yields (line, problem) for sentences of more than 25 words."""
    parts = [(1, text)] if path.suffix == ".md" else comments(path, text)
    for line, comment in parts:
        for sentence in re.split(r"(?<=[.;:!?])\s+|\n\s*\n|\n\s*[-*|#]", comment):
            words = re.findall(r"[A-Za-z][\w'-]*", sentence)
            if len(words) > WORDS:
                yield line, f"{len(words)} words: {' '.join(sentence.split())[:80]}"


def files(paths=()):
    """Repository files that people write, or those below `paths`."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *map(str, paths)],
        cwd=ROOT if not paths else None,
        capture_output=True,
        text=True,
        check=True,
    )
    base = ROOT if not paths else pathlib.Path()
    kept = (*C_FILES, ".py", ".j2", ".toml", ".md")
    for name in listed.stdout.split():
        path = base / name
        if GENERATED.search(name) or not path.is_file():
            continue
        script = not path.suffix and path.read_bytes().startswith(b"#!")
        if script or path.suffix in kept or path.name in ("Makefile", "meson.build"):
            yield path


def main(arguments):
    """Prints what is wrong; returns the exit status."""
    long = "--long" in arguments
    paths = [a for a in arguments if not a.startswith("--")]
    bad = 0
    for path in files(paths):
        text = path.read_text()
        for check in (openings, identifiers, wide, tall):
            for line, problem in check(path, text):
                bad += 1
                print(f"{path}:{line}: {problem}")
        for line, problem in sentences(path, text) if long else ():
            print(f"{path}:{line}: long: {problem}")
    print(f"{bad} problems", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
