"""The rules in the docstrings of methods, as mathematics: `eta_l g_i(y)` becomes LaTeX, words stay words.

A rule is a paragraph of the docstring with four spaces before it: a line a formula, remarks to its right.
"""

import re
import textwrap

GREEK = "alpha beta gamma delta eta kappa lambda mu nu rho tau xi Delta zeta sigma".split()
FUNCTIONS = {"mean": r"\operatorname{mean}", "sum": r"\sum", "grad": r"\nabla", "sign": r"\operatorname{sign}"}
ACCENTS = {"hat": r"\hat", "bar": r"\bar", "h": r"\hat", "^": r"\hat"}
SIGNS = {
    "<-": r"\leftarrow",
    "->": r"\rightarrow",
    ">=": r"\ge",
    "<=": r"\le",
    "||": r"\Vert ",
    "...": r"\dots",
    "~": r"\sim",
    "*": r"\cdot ",
    "{": r"\{",
    "}": r"\}",
}
TOKEN = re.compile(
    r'"[^"]*"|`[^`]*`|sum_\{[^}]*\}|[A-Z][A-Za-z]+(?:-[A-Z]+)+|[A-Za-z]{2,}\'s?|ud\.\w+|i\.e\.|<-|->|\|\||>=|<=|\.\.\.|[A-Za-z][A-Za-z]*\d?(?:_[A-Za-z]+)?|\d+(?:\.\d+)?|\s+|.'
)
NAMES = {
    "eps": r"\epsilon ",
    "server_lr": r"\eta_{\text{server}}",
    "y_last": r"y_{\text{last}}",
    "sum_cohort": r"\sum_{\text{cohort}}",
    "buf": r"\mathrm{buf}",
}


def to_math(lines: list[str]) -> str | None:
    """A rule as a block of display mathematics; None if the lines are not one.

    >>> print(to_math(["    y  <- y - eta_l g_i(y)      K times"]))
    $$
    \\begin{array}{rcll}
    y & \\leftarrow & y-\\eta_{l}\\,g_{i}(y) & K\\,\\text{ times }
    \\end{array}
    $$
    """
    if not all(line.startswith("    ") for line in lines) or not any(re.search(r"<-|=", line) for line in lines):
        return None
    lines = textwrap.dedent("\n".join(lines)).splitlines()
    labelled = any(re.match(r"[\w-]+ {3,}\S", line) and not re.match(r"\S+\s+(?:<-|=)", line) for line in lines)
    body = " \\\\\n".join(_row(line, aligned=labelled or not line.startswith("    ")) for line in lines)
    return f"$$\n\\begin{{array}}{{rcll}}\n{body}\n\\end{{array}}\n$$"


def _row(line: str, aligned: bool) -> str:
    """A line as four cells: what changes, a sign, what it becomes, a remark."""
    text = re.sub(r"(?<=\S)\s+(<-|=|->)\s+", r" \1 ", line.strip())
    parts = [part.strip(" ,;") for part in re.split(r"\s{3,}|;\s{2,}", text)]
    formulas = [part for part in parts if _is_formula(part)]
    if not formulas and line.startswith(" ") and len(parts) > 1:
        formulas = parts[:1]
    remark = r",\ ".join(formula(part) for part in parts if part not in formulas)
    first, sign, rest = _split(formulas[0]) if formulas and aligned else ("", "", formulas[0] if formulas else "")
    more = "".join(rf",\quad {formula(each)}" for each in formulas[1:])
    if not formulas:
        return f"& & \\rlap{{{remark}}} &"
    return f"{formula(first)} & {SIGNS.get(sign, sign)} & {formula(rest)}{more} & {remark}"


def _split(text: str) -> tuple[str, str, str]:
    first, sign, rest = re.split(r"(<-|=)", text, maxsplit=1)
    return first.strip(), sign, rest.strip(" ,")


def _is_formula(text: str) -> bool:
    """Whether a part of a line is a formula, perhaps with a word in it, rather than a remark."""
    if re.match(r"\S+ <- ", text):
        return True
    start = text.partition(", ")[0] if re.match(r"\S+ = ", text) else text
    plain = re.sub(r"\w*[_(]\w*", "", start)
    words = [w for w in re.findall(r"[A-Za-z]{2,}", plain) if w not in (*GREEK, *FUNCTIONS, "sqrt", "eps", "xi")]
    return "=" in text and len(words) < 2


def _escaped(text: str) -> str:
    return re.sub(r"([#%&_{}$])", r"\\\1", text)


def formula(text: str) -> str:
    """One formula in LaTeX.

    >>> formula("c + (S/N) mean_i (c_i+ - c_i)")
    'c+(S/N)\\\\,\\\\operatorname{mean}_{i}\\\\,(c_{i}^{+}-c_{i})'
    """
    text = re.sub(
        r"(?<=\w)([+-])(?=\s*(?:[-+=,;)\]]|<-|is\b|the\b|$))|(?<=\w)([+-])(?= )(?<=\S)(?=\s[-+=])",
        lambda m: f"^{m[0]}",
        text,
    )
    out: list[str] = []
    words: list[str] = []

    def flush() -> None:
        if words:
            out.append(rf"\text{{ {_escaped(' '.join(words))} }}")
            words.clear()

    tokens = TOKEN.findall(text)
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token.isspace():
            if not words and out and i + 1 < len(tokens) and _juxtaposed(out[-1], tokens[i + 1]):
                out.append(r"\,")
        elif (symbol := _symbol(token)) is not None and not _is_article(tokens, i):
            flush()
            out.append(symbol)
        elif token[0].isalpha() or token[0] in '"`' or _is_article(tokens, i):
            words.append(token.strip("`"))
        elif token == "^":
            flush()
            exponent = tokens[i + 1] if i + 1 < len(tokens) else ""
            if exponent == "-" and i + 2 < len(tokens) and tokens[i + 2].strip() and tokens[i + 2][0].isalnum():
                exponent, i = f"-{tokens[i + 2]}", i + 1
            out.append(f"^{{{_symbol(exponent) or exponent}}}")
            i += 1
        else:
            flush()
            out.append(SIGNS[token] if token in SIGNS else token)
        i += 1
    flush()
    made = "".join(out).replace(r"\sqrt(", r"\sqrt{(")
    return re.sub(r"\\sqrt\{\(([^()]*)\)", r"\\sqrt{\1}", made)


def _is_article(tokens: list[str], i: int) -> bool:
    """Whether "a" is a word here, not a number."""
    following = tokens[i + 2] if i + 2 < len(tokens) else ""
    return tokens[i] == "a" and tokens[i + 1].isspace() and following.isalpha() and _symbol(following) is None


def _juxtaposed(before: str, after: str) -> bool:
    """Whether two factors stand beside each other, which LaTeX would draw without a space."""
    return (
        bool(re.search(r"[\w})\]]$", before))
        and before not in SIGNS.values()
        and before != FUNCTIONS["grad"]
        and (after[0].isalnum() or after[0] in "([|")
    )


def _symbol(token: str) -> str | None:
    """A name as a symbol; None if it is a word, or a sign."""
    if token.startswith("sum_{"):
        return r"\sum_{i\in\text{cohort}}"
    if token in NAMES:
        return NAMES[token]
    if token == "sqrt":
        return r"\sqrt"
    if re.fullmatch(r"\d[\d.]*", token):
        return token
    base, _, index = token.partition("_")
    subscript = f"_{{{_index(index)}}}" if index else ""
    if token in ("mean", "sum", "I"):  # without an index they are words
        return None
    if base in FUNCTIONS:
        return FUNCTIONS[base] + subscript
    number = re.fullmatch(r"(\w+?)(\d)", base)
    if number and not index:
        base, subscript = number[1], f"_{{{number[2]}}}"
    if base in GREEK:
        return f"\\{base}" + (subscript or " ")
    for accent in ("hat", "bar"):
        if base.endswith(accent) and len(base) <= 4:
            return rf"{ACCENTS[accent]}{{{base.removesuffix(accent)}}}{subscript}"
    if base in ("mh", "vh"):
        return rf"\hat{{{base[0]}}}{subscript}"
    return base + subscript if len(base) == 1 and base.isalpha() else None


def _index(index: str) -> str:
    if index in GREEK:
        return f"\\{index}"
    return index if len(index) <= 2 else rf"\text{{{index}}}"
