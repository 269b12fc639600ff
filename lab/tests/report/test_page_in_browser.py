"""A report in Chromium: tables sort and filter, pictures enlarge, the contents lead to headings."""

import pytest
from nearwise_lab.report import render_report

from lab.tests.report.pages import first_column
from tests.browser import no_serious_findings

pytestmark = pytest.mark.slow


def test_a_table_sorts_by_numbers_and_returns_to_its_order(compared, browser):
    page = browser.new_page()
    page.goto(render_report(compared).as_uri())
    table = page.locator(".scroll > table").nth(1)
    before = first_column(table)
    button = table.locator("thead button").nth(1)
    sorted_by = []
    for _ in range(3):
        button.click()
        cells = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
        sorted_by.append([float(text.split()[0]) for text in cells if text[:1].isdigit()])
    assert sorted_by[0] == sorted(sorted_by[0])
    assert sorted_by[1] == sorted(sorted_by[1], reverse=True)
    assert first_column(table) == before
    page.locator("details.contents > summary").click()
    page.locator("details.contents a").last.click()
    assert page.evaluate("document.querySelector(location.hash).textContent") == (
        page.locator("main h2, main h3").last.inner_text()
    )
    no_serious_findings(page)
    page.close()
