"""Sphinx configuration of the documentation site; `build.py` makes the sources and runs it."""

from pathlib import Path

import nearwise

project = "nearwise"
author = copyright = "The nearwise authors"
version = release = nearwise.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 4
exclude_patterns = ["gallery_sources", "**/*.ipynb"]

templates_path = [str(Path(__file__).parent / "templates")]
autosummary_generate = True
autodoc_typehints = "none"  # docstrings give types with their shapes and ranges
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": ["gallery_sources"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "/plot_",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
}

html_theme = "pydata_sphinx_theme"
html_title = "nearwise"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
}


def _is_of_scikit_learn(app, kind, name, member, skip, options):  # type: ignore[no-untyped-def]
    """Leave out what scikit-learn writes into each estimator, and explains itself."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app):  # type: ignore[no-untyped-def]
    """Connect the filter."""
    app.connect("autodoc-skip-member", _is_of_scikit_learn)
