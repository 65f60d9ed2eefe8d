# SPDX-License-Identifier: Apache-2.0
"""Layout of generated C and CUDA: line breaks and blank lines.

It changes white space only. A line ends at column 100, except the public functions of CUDA headers:
each is one line, because nvcc passes every further line to the host's compiler with a line
directive, which costs half a per cent of a compilation.
"""

import re

WIDTH = 100
INDENT = "    "
# Beginnings and names of the public functions of CUDA headers.
LAUNCHER, PUBLIC = ("KF_FN ", "template <int kfi_as = "), re.compile(r" kf_\w+\(")
# Parts of a line that decide where it may end: literals, brackets, separators and operators.
TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[(\[{]|[)\]}]'
    r"|[<>]|, |; | (?:&&|\|\||[?:]|[-+*/|=]) "
)
# Cost of a break, besides twice the number of open brackets. It is after a comma, a semicolon, an
# opening bracket or an equals sign, and before any other operator.
COST = {", ": 0, "; ": 0, " && ": 0, " || ": 0, " ? ": 1, " : ": 1, " = ": 3}
COST |= dict.fromkeys((" + ", " - ", " * ", " / ", " | "), 2)
BRACKET = 4
AFTER = re.compile(r" [\w*]")  # the text after a condition, or the attribute of a kernel
OPEN = (" =", "&&", "||", "==", "(", " ?", " :", " +")  # last characters of an unfinished statement
COMMENT = re.compile(r'((?:"(?:\\.|[^"\\])*"|[^"])*?[;{},)]) +(//.*|/\*(?:(?!\*/).)*\*/)$')
BRACKETS = re.compile(r'"(?:\\.|[^"\\])*"|[()]')
BODY = re.compile(r"(.*(?:\)|\belse|\bdo)) \{ (.*[;}]) \}$")


def tidy(text):
    """Lays out a generated file: indents by braces, breaks long lines, separates functions."""
    lines = []
    previous, comment = "", False
    for line in indented(text):
        if not line:
            if previous and previous[-1] != "{":
                lines.append(line)
                previous = line
            continue
        first = line[0]
        if (previous == "}" or previous == "#endif") and first not in " #}":
            lines.append("")
        if first != " " and line[-1] == "{" and first not in "}#/":
            separate(lines, line)
        if len(line) <= WIDTH or line[-1] == "\\":
            lines.append(line)
        elif comment:
            lines += words(line, INDENT[1:])
        else:
            lines += broken(line)
        previous = lines[-1]
        if comment:
            comment = "*/" not in line
        elif "/*" in line:
            comment = line.rfind("/*") > line.rfind("*/")
    return "\n".join(lines)


def indented(text):
    """Yields the lines of a text, statements indented by the braces around them.

    Lines between a statement's first and last keep their indentation relative to the first.
    """
    blocks, shift, ended, comment = [0], 0, True, False  # blocks: indentations of the open braces
    before = []  # blocks at the open #if
    for line in statements(text):
        code = line.lstrip(" ")
        if not code or code[0] == "#":
            yield code
            if code[:3] == "#if":
                before.append(blocks[:])
            elif code[:3] == "#el":
                blocks = before[-1][:]
            elif code[:6] == "#endif":
                before.pop()
            continue
        last, indent = code[-1], len(line) - len(code)
        if ended and not comment:
            shift = blocks[-1] - (4 if code[0] == "}" and len(blocks) > 1 else 0) - indent
        if shift:
            indent += shift
            line = " " * indent + code
        yield line
        if comment or code[:2] == "/*":
            comment = "*/" not in code
            ended = True
            continue
        if " // " in code:
            last = code.partition(" // ")[0][-1]
        ended = last in ";{}:" or code[:2] == "//" or code[-2:] == "*/"
        if "{" in code or "}" in code:
            opened = code.count("{") - code.count("}")
            if opened < 0:
                del blocks[max(1, len(blocks) + opened) :]
            elif opened and not code.startswith(("extern", "namespace")):
                blocks += [indent + 4] * opened


def statements(text):
    """Yields the lines of a text, but those of an unfinished statement as one line. Lines of a
    comment stay as they are, whatever brackets they leave open."""
    whole, depth, comment = "", 0, False
    for line in text.split("\n"):
        line = line.rstrip(" \t")
        if comment or not whole and line.lstrip(" ").startswith("/*") and "*/" not in line:
            comment = "*/" not in line
            yield line
        elif not whole and (not line or line[-1] in ";{}" or line[0] == "#" or "//" in line):
            yield line
        elif whole and (not line or line[0] == "#" or "//" in line or "/*" in line):
            yield whole
            yield line
            whole, depth = "", 0
        else:
            whole = joined(whole, line) if whole else line
            depth += line.count("(") - line.count(")")
            if depth > 0 or line.endswith(OPEN) or line[-1] == "," and unfinished(line):
                continue
            yield whole
            whole, depth = "", 0
    if whole:
        yield whole


def unfinished(line):
    """True for a line that ends within the arguments of a template, or in a list of constants."""
    if line.count("<") > line.count(">"):
        return True
    return line.lstrip(" ").startswith("const") and "{" not in line


def joined(before, line):
    """Appends the next line of a statement."""
    line = line.lstrip()
    return f"{before}{line}" if before[-1] == "(" or line[0] == ")" else f"{before} {line}"


def separate(lines, opening):
    """Puts a blank line before a function whose body begins at `opening`."""
    at, comment = len(lines), False
    while at and (line := lines[at - 1]) and (comment or line[0] != "#" and line[-1] not in "};{"):
        comment = (comment or line.endswith("*/")) and "/*" not in line
        at -= 1
    if 0 < at < len(lines) + (opening != "{") and lines[at - 1][-1:] in ("}", ";"):
        lines.insert(at, "")


def one_line(line):
    """True for a public function of a CUDA header, which stays on one line."""
    return line.startswith(LAUNCHER) and PUBLIC.search(line) is not None


def broken(line):
    """Breaks a line, if it is too long, into a tuple of lines."""
    if len(line) <= WIDTH or one_line(line):
        return (line,)
    code = line.lstrip()
    indent = line[: len(line) - len(code)]
    if code.startswith("//"):
        return words(line, f"{indent}// ")
    if code.startswith("/*"):
        return words(line, f"{indent}   ")
    if code.startswith("#"):
        return directive(line) if code.startswith("#define") else (line,)
    if " /" in code and (found := COMMENT.match(code)):
        note = words(f"{indent}{found[2]}", f"{indent}{'// ' if found[2][1] == '/' else '   '}")
        return (*note, *wrapped(indent + found[1]))
    if code.startswith(("if (", "for (", "while (")) and code[-1] == ";":
        if end := condition(code):
            statement = indent + INDENT + code[end:]
            return (*wrapped(indent + code[: end - 1]), *broken(statement))
    if code[-1] == "}" and (body := BODY.match(code)):
        head, inner = body.groups()
        if head.count("{") == head.count("}"):
            inner = [x for s in split(inner) for x in wrapped(indent + INDENT + s)]
            opening = [f"{indent}{{"] if not indent else []
            head = head if opening else head + " {"
            return (*wrapped(indent + head), *opening, *inner, f"{indent}}}")
    return wrapped(line)


def condition(code):
    """Returns where the statement under a condition begins, or 0 for an empty one."""
    depth = 0
    for found in BRACKETS.finditer(code):
        if found[0] == "(":
            depth += 1
        elif found[0] == ")":
            depth -= 1
            if not depth:
                return found.end() + 1 if code[found.end()] == " " else 0
    return 0


def wrapped(line):
    """Breaks a line of code, if it is too long, into a tuple of lines."""
    return (line,) if len(line) <= WIDTH else tuple(pieces(line, WIDTH))


def pieces(line, width):
    """Yields the lines of a long line of code. Continuation lines are indented once more."""
    indent = line[: len(line) - len(line.lstrip())]
    more, room = indent + INDENT, width - len(indent) - len(INDENT)
    flat = line.count("(") + line.count("{") + line.count("[") < 2 and '"' not in line
    breaks = None if flat else candidates(line)
    begin, end = 0, width
    while len(line) > end:
        least = (begin or len(indent)) + width // 4
        cut = line.rfind(", ", least, end) + 2 if breaks is None else best(breaks, least, end)
        if cut < 2:
            cut = best(candidates(line), begin + len(INDENT), end)
        if not cut and '"' not in line:
            cut = line.rfind(" ", begin + len(INDENT), end + 1) + 1
        if not cut:  # after a literal that is too long
            cut = next((at for at, _ in candidates(line) if at > end), 0)
        if not cut:
            break
        yield (more if begin else "") + line[begin:cut].strip() if begin else line[:cut].rstrip()
        begin, end = cut, cut + room
    yield more + line[begin:].lstrip() if begin else line


def best(breaks, least, most):
    """Returns where the line is best cut between two columns, or 0."""
    found, cost = 0, 1000
    for at, price in breaks:
        if at > most:
            break
        if at > least and price <= cost:
            found, cost = at, price
    return found


def candidates(line):
    """Returns [(where the next line would begin, cost)] of the breaks that a line allows."""
    depth, found = 0, []
    for m in TOKEN.finditer(line):
        token, end = m[0], m.end()
        cost = COST.get(token)
        if cost is not None:
            cut = m.start() + 1 if token[0] == " " and token != " = " else end
            found.append((cut, 2 * depth + cost))
        elif token in "([{":
            depth += 1
            found.append((end, 2 * depth + BRACKET))
        elif token == "<":
            depth += line[end - 2] != " " or line[end - 10 : end - 2] == "template"
        elif token == ">":
            depth -= line[end - 2] not in "- >"
        elif token in ")]}":
            depth -= 1
            if token == ")" and not depth and AFTER.match(line, end):
                found.append((end + 1, 0))
    return found


def split(body):
    """Splits the statements of a body that was written on one line."""
    depth, begin = 0, 0
    for found in TOKEN.finditer(body):
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
        elif found[0] == "; " and not depth:
            yield body[begin : found.start() + 1]
            begin = found.end()
    yield body[begin:]


def directive(line):
    """Breaks a #define by backslashes."""
    lines = list(pieces(line, WIDTH - 2))
    return (*(f"{part} \\" for part in lines[:-1]), lines[-1])


def words(line, indent):
    """Breaks a comment between words."""
    lines = []
    while len(line) > WIDTH and (cut := line.rfind(" ", len(indent), WIDTH + 1)) > len(indent):
        lines.append(line[:cut].rstrip())
        line = indent + line[cut + 1 :]
    return (*lines, line)
