"""Pictures: maps of the features, and reconstructed images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nearwise_lab.experiments.representations import Comparison, arm_of
from nearwise_lab.report.drawing import LINE_COLORS, Picture, canvas, page_style, picture, slug
from nearwise_lab.report.figures import head
from nearwise_lab.report.representations.tables import context_words

_CLASS_COLORS = (*LINE_COLORS, "#d55e00", "#56b4e9", "#e6c200")
_CLASS_MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
WAYS = {"tsne": "t-SNE", "pca": "two principal components"}


def feature_maps(comparison: Comparison, context: str, way: str) -> Picture | None:
    """Map the test features of every encoder, in the color of their class."""
    found = {m["encoder"]: m for m in comparison.maps if (m["context"], m["way"]) == (context, way)}
    names = [n for n in comparison.encoders if n in found]
    if not names:
        return None
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    first = found[names[0]]
    with page_style():
        figure, axes = canvas(9.4, 0.5 + 2.9 * rows, rows, columns)
        head(figure, f"{WAYS[way]} of test features, {context_words(context)} context")
        for axis in axes.ravel()[len(names) :]:
            axis.set_axis_off()
        for axis, name in zip(axes.ravel(), names, strict=False):
            _map(axis, found[name])
            axis.set_title(
                f"{arm_of(name).title}  (trust {found[name]['trustworthiness']:.3f})", fontsize=9
            )
        handles, _ = axes.ravel()[0].get_legend_handles_labels()
        titles = comparison.facts.get("classes") or sorted(set(np.asarray(first["labels"])))
        figure.legend(handles, [str(t) for t in titles], loc="outside right center", fontsize=8,
                      title="class")  # fmt: skip
    caption = (
        f"{len(first['labels']):,} test rows of seed {first['seed']}. A map is a picture, no "
        "evidence: numbers of the space itself stand in the table of geometry. Trust: "
        "trustworthiness of the map at 12 neighbors, 1 where no neighbor on it is false."
    )
    name = f"map-{way}-{slug(context)}"
    return picture(figure, name, f"Maps of the features of {', '.join(names)}.", caption)


def _map(axis: Axes, drawn: Mapping[str, Any]) -> None:
    points, labels = np.asarray(drawn["points"]), np.asarray(drawn["labels"])
    for position in np.unique(labels):
        color = _CLASS_COLORS[int(position) % len(_CLASS_COLORS)]
        mark = _CLASS_MARKS[int(position) % len(_CLASS_MARKS)]
        own = points[labels == position]
        axis.scatter(
            own[:, 0], own[:, 1], s=9, color=color, marker=mark, alpha=0.75, linewidths=0,
            label=str(position),
        )  # fmt: skip
    axis.set_xticks([])
    axis.set_yticks([])


def reconstructions(comparison: Comparison) -> Picture | None:
    """Test images beside what each field makes of them, a block of rows for each context."""
    kept = comparison.pictures
    if not kept:
        return None
    lines = [("original", kept["originals"])]
    for context, made in kept["contexts"].items():
        words = context
        if made.get("seen") is not None:
            lines.append((f"seen, {words}", made["seen"]))
        lines += [(f"{arm_of(n).title}, {words}", made["fields"][n]) for n in made["fields"]]
    n_images = len(kept["originals"])
    with page_style():
        figure, axes = canvas(9.4, 0.5 + 0.72 * len(lines), len(lines), n_images)
        head(figure, f"Reconstructions of test images, seed {kept['seed']}")
        for row, (title, images) in zip(axes, lines, strict=True):
            for axis, image in zip(row, images, strict=True):
                _image(axis, np.asarray(image))
            row[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
    caption = (
        "Images of the test part, never trained on. Hidden pixels are shown black; fields are "
        "asked for all pixels."
    )
    return picture(figure, "reconstructions", "Test images and their reconstructions.", caption)


def _image(axis: Axes, image: np.ndarray) -> None:
    """Show (C, H, W) in [0, 1]."""
    shown = np.clip(image, 0.0, 1.0)
    if shown.shape[0] == 1:
        axis.imshow(shown[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    else:
        axis.imshow(shown.transpose(1, 2, 0), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)
