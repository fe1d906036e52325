"""Ranking: a small library with questions whose best answers are known. Both databases must find them, and find them
near the top."""

import pytest

from tests.store.factories import Tenant
from turnkeep.model.knowledge import Column, RowQuery
from turnkeep.store.ports import Store

PAGES = {
    "Refund policy": "Customers may return a product within 30 days. The refund is paid to the original card.\n\n"
    "# Exceptions\n\nDownloads and gift cards are not refunded.",
    "Shipping": "We ship on the day after the order. Shipping to islands takes longer. A parcel that does not arrive "
    "within 30 days counts as lost, and we refund the shipping fee.",
    "Security": "Passwords are stored hashed. Two-factor authentication protects an account. Report an incident to the "
    "security team at once.",
    "Onboarding of new colleagues": "Day one: laptop, badge, password. Week one: security training and a tour.",
    "Travel expenses": "Trains before planes. Hotels up to 120 euros. Keep receipts; they are paid with the salary.",
    "Parental leave": "Sixteen weeks of paid leave for each parent. Tell your manager three months before.",
    "Holidays": "Thirty days of holiday a year. Ask your manager for leave two weeks before.",
    "Incident response": "# Severity\n\nAn outage of the whole site is severity one.\n\n# First steps\n\nPage the "
    "engineer on call, open a channel, write down the time. An incident has one commander.",
    "Database backups": "Backups of the database run every night and are kept for 30 days. Restore drills take place "
    "each quarter.",
    "Style guide": "Write short sentences. Prefer verbs. Colours: see the brand page. Use the Oxford comma.",
    "Brand colours": "Our red is #c1121f. The logo stands on white. Colour contrast must reach AA.",
    "東京オフィス": "東京のオフィスは渋谷にあります。受付は九時に開きます。",
    "大阪オフィス": "大阪のオフィスは梅田にあります。駐車場はありません。",
    "Büroordnung": "Die Küche wird täglich geputzt. Fahrräder gehören in den Keller. Der Serverraum bleibt zu.",
    "Café hours": "The café opens at eight. Lunch from twelve to two. Crème brûlée on Fridays.",
    "Long handbook": "\n\n".join(
        [*("General remarks about working here, the office, the team and the day. " * 12 for _ in range(6)),
         "## Lost badge\n\nA lost badge is blocked by the front desk within minutes.",
         *("More remarks about working here, the office, the team and the day. " * 12 for _ in range(6))]
    ),
}  # fmt: skip

LABELLED = [
    ("refund", ["Refund policy", "Shipping"], 1),
    ("refund policy", ["Refund policy"], 1),
    ("how do I get a refund for a gift card?", ["Refund policy"], 1),
    ("shipping fee", ["Shipping"], 1),
    ("lost parcel", ["Shipping"], 2),
    ("two-factor", ["Security"], 1),
    ("password", ["Onboarding of new colleagues", "Security"], 2),
    ("security incident", ["Security"], 1),
    ("incident commander", ["Incident response"], 1),
    ("who do I page in an outage", ["Incident response"], 1),
    ("hotel receipts", ["Travel expenses"], 1),
    ("what is paid with the salary", ["Travel expenses"], 1),
    ("leave", ["Parental leave", "Holidays"], 1),
    ("parental leave weeks", ["Parental leave"], 1),
    ("days of holiday", ["Holidays"], 1),
    ("backup restore", ["Database backups"], 1),
    ("database", ["Database backups"], 1),
    ("brand colours", ["Brand colours", "Style guide"], 1),
    ("oxford com", ["Style guide"], 1),
    ("lost badge", ["Long handbook"], 1),
    ("渋谷", ["東京オフィス"], 1),
    ("オフィス", ["東京オフィス", "大阪オフィス"], 1),
    ("大阪 駐車場", ["大阪オフィス"], 1),
    ("梅", ["大阪オフィス"], 1),
    ("KÜCHE", ["Büroordnung"], 1),
    ("wo stehen die Fahrräder", ["Büroordnung"], 1),
    ("crème", ["Café hours"], 1),
]
"""A query, every page that should be found for it, and the place by which the first of them must have come."""

MEAN_RECIPROCAL_RANK = 0.95


class TestPages:
    async def test_the_right_page_is_found_and_stands_near_the_top(self, store: Store, tenant: Tenant) -> None:
        for title, content in PAGES.items():
            await store.create_page(tenant.service, title=title, content=content)
        missing: list[str] = []
        reciprocal = 0.0
        for query, wanted, by_place in LABELLED:
            found = [hit.title for hit in (await store.search_pages(tenant.ann, query, limit=10)).hits]
            if not set(wanted) <= set(found[:10]) or min(map(found.index, wanted)) >= by_place:
                missing.append(f"{query}: {found[:4]}")
            else:
                reciprocal += 1 / (min(map(found.index, wanted)) + 1)
        assert missing == []
        assert reciprocal / len(LABELLED) >= MEAN_RECIPROCAL_RANK

    async def test_a_title_outweighs_a_mention(self, store: Store, tenant: Tenant) -> None:
        for number in range(5):
            await store.create_page(tenant.service, title=f"Notes {number}", content="saffron is mentioned here once")
        await store.create_page(tenant.service, title="Saffron", content="It grows in Kashmir and in Iran. " * 10)
        await store.create_page(tenant.service, title="Notes 9", content="saffron is mentioned here once")
        assert (await store.search_pages(tenant.ann, "saffron")).hits[0].title == "Saffron"

    async def test_what_says_it_more_often_in_fewer_words_comes_first(self, store: Store, tenant: Tenant) -> None:
        await store.create_page(tenant.service, title="Long", content="saffron " + "and other things " * 80)
        await store.create_page(tenant.service, title="Dense", content="saffron, more saffron, and saffron again")
        assert [hit.title for hit in (await store.search_pages(tenant.ann, "saffron")).hits] == ["Dense", "Long"]


class TestRows:
    @pytest.mark.parametrize("spread", ["one table", "two tables"])
    async def test_a_row_with_all_words_comes_before_those_with_some(
        self, store: Store, tenant: Tenant, spread: str
    ) -> None:
        columns = [Column(key=0, name="Name", type="text"), Column(key=1, name="City", type="text")]
        cities = [["Anna Rossi", "Rome"], ["Bruno Weiss", "Bern"], ["Anna Weiss", "Bern"], ["Carl Rossi", "Bern"]]
        first = await store.create_table(tenant.service, name="One", columns=columns)
        second = (
            first if spread == "one table" else await store.create_table(tenant.service, name="Two", columns=columns)
        )
        await store.add_rows(tenant.service, first.id, cities[:2], batch="a")
        await store.add_rows(tenant.service, second.id, cities[2:], batch="b")
        hits = (await store.find_rows(tenant.ann, RowQuery(text="anna bern"), table=None)).hits
        assert hits[0].row.cells == ("Anna Weiss", "Bern")
        assert len(hits) == 4
