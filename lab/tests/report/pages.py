"""What holds for every page."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "input", "link", "col"}


class Checker(HTMLParser):
    """Collect tags, ids and texts; note tags that are not closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.text = [], [], [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check_page(page: str) -> Checker:
    """A page is well formed, needs no network, and says in words what it shows."""
    checked = Checker(page)
    markup, _, script = page.partition("<script>")
    addresses = re.findall(r'(?:src|href|url\()\s*=?\s*["\']?([^"\')\s>]+)', markup)
    assert addresses
    assert all(a.startswith(("data:", "#")) for a in addresses)
    assert "@import" not in page
    assert not re.search(r"<script|fetch|XMLHttp|import\(|http", script)
    assert len(checked.ids) == len(set(checked.ids))
    assert checked.tags.count("h1") == 1
    assert ("html", {"lang": "en"}) in checked.attributes
    for tag, attributes in checked.attributes:
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg" and attributes.get("aria-hidden") != "true":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    return checked


def first_column(table):
    """Texts of the first column of a table in a browser."""
    return table.locator("tbody tr th").all_inner_texts()
