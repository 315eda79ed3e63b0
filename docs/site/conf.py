# SPDX-License-Identifier: MIT
"""The documentation site. build-aux/docs calls Sphinx with this file."""

import importlib.metadata

project = "speed-bump"
author = "The speed-bump authors"
copyright = "2026, the speed-bump authors"
release = version = importlib.metadata.version("speed-bump")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site"]
root_doc = "index"

# GitHub's anchors, so that a link works there and here.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
c_id_attributes = ["SB_API"]
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = f"speed-bump {release}"
html_static_path = ["static"]
html_css_files = ["speed-bump.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1d5fb8",
        "color-brand-content": "#1d5fb8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7fb2f0",
        "color-brand-content": "#7fb2f0",
    },
}
