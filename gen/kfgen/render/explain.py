# SPDX-License-Identifier: Apache-2.0
"""`kfgen explain`: describes one function, from its spec entries to the files that contain it."""

import pathlib
import tomllib

from kfgen.model import contract
from kfgen.model.activation import ActCode
from kfgen.paths import called
from kfgen.render.render import ROOT, Renderer, parts
from kfgen.render.source import cut, find


def entry_text(path, section, key):
    """Lines of the entry in its spec file."""
    lines, inside, text = [], False, False
    for line in pathlib.Path(path).read_text().splitlines():
        if not text and line.startswith("["):
            table = tomllib.loads(line)
            inside = key in table.get(section, {})
        if inside:
            lines.append(line)
        if line.count('"""') % 2 or line.count("'''") % 2:
            text = not text
    while lines and (not lines[-1].strip() or lines[-1].startswith("#")):
        lines.pop()
    return lines


def path_of(selection, entry):
    return next(
        p for p in selection.spec.files if (called(p) if entry.builtin else str(p)) == entry.file
    )


def shown(path):
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def of_backend(template, ext):
    """True if headers of the backend are rendered from this template: by suffix, or by neither."""
    suffixes = pathlib.PurePath(template).suffixes
    return "/launchers/" not in template and suffixes in ([".j2"], [ext, ".j2"])


def code(kernel, act, cpu):
    """Generated statements for one element, and those of the activation's function."""
    lines = kernel.c.listing(act) if cpu else kernel.cuda.listing()
    text = " ".join(lines)
    for f in ActCode(act).functions(cpu):
        for bwd, body in ((False, f.fwd), (True, f.bwd)):
            prefix = f"kfi_cpu_act_{act.name}" if cpu else "kfi_act"
            word = f"{prefix}{'_bwd' if bwd else ''}_{f.flavour}("
            if word in text:
                arguments = ", ".join(
                    (["x", "dy"] if bwd else ["x"]) + (list(act.scalars) if cpu else ["s"])
                )
                lines += [
                    f"where {word}{'' if cpu else 'tag, '}{arguments}) is",
                    *(f"    {line}" for line in body[0]),
                    f"    {body[1]}",
                ]
    return lines


def launch_steps(found):
    """Lines that describe the launches of a call. found: steps of the manifest."""
    lines = []
    for number, step in enumerate(found, 1):
        lines.append(f"{number}. {step['does']}")
        reads, writes = (", ".join(step[word]) or "nothing" for word in ("reads", "writes"))
        told = {"if": step["when"], "per": ", ".join(step["per"]), "reads": reads}
        for word, text in (told | {"writes": writes}).items():
            lines += [f"   {word:7}{text}"] if text else []
        for launch in step["launches"]:
            lines.append(f"   {'launch':7}{configuration(launch)}")
            lines += [f"          {name}" for name in launch["kernels"]]
    return lines


def configuration(launch):
    """Grid, block and attributes of a launch."""
    early = {True: "early", False: "", None: "early for some sizes"}[launch["early"]]
    words = [f"grid ({launch['grid']})", f"block ({launch['block']})"]
    words += [f"clusters of up to {launch['cluster']}"] * (launch["cluster"] > 1)
    words += [f"shared memory: {launch['shared']}"] * bool(launch["shared"])
    words += [f"tensor maps of {', '.join(launch['maps'])}"] * bool(launch["maps"])
    return "; ".join([*words, *[early] * bool(early)])


def workspace(k):
    """Lines that describe the workspace: the function that returns its bytes, and its buffers."""
    if not k.cuda.buffers:
        return [f"{k.workspace} returns 0" if k.has_workspace else "none"]
    bytes_ = f"{k.workspace}({', '.join(k.sizes)}) bytes"
    return [bytes_, *(f"{name}: {text}" for name, text in k.cuda.buffers.items())]


def explain(selection, name, described, user=None):
    """Returns the description of the function `name`.

    Args:
        described: manifest.function.
    """
    launcher, cpu = find(selection, name)
    k, act = launcher.kernel, launcher.act
    entries = [("op", k.op.entry, k.op)] + ([("activation", act.name, act)] if k.has_act else [])
    out = [f"{launcher.cpu_name if cpu else launcher.name}: {k.title}", ""]

    def part(title, lines):
        out.extend([title, *(f"    {line}".rstrip() for line in lines), ""])

    for section, key, entry in entries:
        path = path_of(selection, entry)
        part(f"Spec, {shown(path)}", entry_text(path, section, key))
    f = described(launcher, user)
    part("Signature", [(f["cpu_signature"] if cpu else f["signature"]) + ";"])
    part("Contract", contract.lines(k, whole=True))
    both = [
        kernel
        for kernel in selection.kernels(k.op)
        if (kernel.dtypes, kernel.forward_variant) == (k.dtypes, k.forward_variant)
    ]
    for kernel in both:
        for target, is_c in (("CUDA", False), ("C", True))["cuda" not in kernel.backends :]:
            part(
                f"{'Backward' if kernel.bwd else 'Forward'} of an element in {target}",
                code(kernel, act, is_c),
            )
    if any(kernel.bwd for kernel in both):
        lines = ["the op's: derived from its expr"]
        if k.has_act:
            how = "closed form, its dexpr" if act.dexpr else "derived from its expr"
            lines.append(f"the activation's: {how}")
        part("Derivative", lines)
    if not cpu:
        part("Launch steps", launch_steps(f["steps"]))
        part("Workspace", workspace(k))
    renderer = Renderer(cut(selection, launcher), any_activation=False)
    renderer.render()
    ext = ".h" if cpu else ".cuh"
    read = sorted(shown(p) for p in renderer.env.loader.read)
    part("Templates", [t for t in read if of_backend(t, ext)])
    own = f["header"].startswith("kf/user/")
    part(
        "Files",
        [
            *parts(f["header"] + ext),
            f"kf/user/{user}/activations{ext}"
            if own and not act.builtin
            else f"kf/ops/activations{ext}",
            f"kf/{user}{ext} includes them" if own else f"kf/kf{ext} includes them",
            *([] if cpu else [f"kf/{f['launchers']}.cu has it with C linkage"]),
        ],
    )
    return "\n".join(out).rstrip() + "\n"
