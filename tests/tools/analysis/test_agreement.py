"""How well the checks of ``pipecat-hedge compare`` tell a difference from another wording."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from pipecat_hedge.tools.analysis.agreement import Said, disagreements

ALIKE = [
    [
        "We are open from 12 till 10 tonight.",
        "Tonight we open at noon and close at ten.",
        "You can come tonight between noon and 10.",
    ],
    [
        "The fish and chips are $14.50.",
        "Fish and chips? That's 14.50.",
        "Our fish and chips cost $14.50, with peas.",
    ],
    [
        "Yes, we have parking behind the house, and it is free after 6 pm.",
        "Sure, you can park for free behind us after 18:00.",
        "Parking behind the house is free from six in the evening.",
    ],
    [
        "I've booked a table for four on Friday at 19:30.",
        "Done: Friday at 7:30 pm, a table for 4.",
        "Your table for four is booked for Friday, 7:30 p.m.",
    ],
    [
        "No, the soup does not contain any nuts.",
        "The soup has no nuts in it.",
        "There aren't any nuts in the soup.",
    ],
    [
        "I'm sorry, I can't help with that.",
        "I am afraid I cannot help with that.",
        "I cannot answer that, I'm afraid.",
    ],
    [
        "We deliver within 3 miles, for $3.",
        "Delivery costs $3, up to three miles.",
        "Yes, up to 3 miles away, for $3.",
    ],
    [
        "The terrace is closed on Monday and Tuesday.",
        "On Mondays and Tuesdays the terrace is not open.",
        "Unfortunately the terrace is shut Monday and Tuesday.",
    ],
    [
        "The risotto is vegetarian.",
        "You could have the risotto, it's vegetarian.",
        "Yes, our risotto has no meat.",
    ],
    [
        "Dogs are welcome on the terrace.",
        "Of course, bring your dog to the terrace.",
        "You may bring dogs, on the terrace.",
    ],
    [
        "Yes, we are open on Sunday. We do not deliver on Sundays.",
        "We are open Sunday, but there is no delivery.",
        "Sure, Sunday we are open. Delivery isn't available that day.",
    ],
    [
        "No, we don't take cards. You can pay in cash.",
        "Sorry, no cards. Cash is fine.",
        "No. We do not accept cards. Please pay cash.",
    ],
    [
        "You can cancel for free. We need no reason.",
        "Cancelling is free. No reason is needed. Just call us.",
        "Of course, you can cancel, without a reason and for free.",
    ],
    [
        "We have parking. It isn't free. It costs twenty-five euros.",
        "Parking is available, but not free: 25 euros.",
        "You can park for €25.",
    ],
    [
        "Your table is booked. You don't have to call again.",
        "I have booked your table. There is no need to call again.",
        "Done, your table is booked. No further call is needed.",
    ],
]
"""Each group says the same thrice."""

CHANGED = {
    "figures": """
        14.50 > 15.40, 10 > 11, ten > nine, four > five, table for 4 > table for 6,
        3 miles > 5 miles, $3 > $4, 7:30 > 8:30, 19:30 > 20:30, six > five, 18:00 > 19:00,
        6 pm > 7 pm, three > two, twenty-five > twenty-one, 25 > 52
    """,
    "dates": "Friday > Saturday, Tuesday > Sunday, tonight > tomorrow, Tonight > Tomorrow",
    "polarity": """
        are open > are not open, have parking > have no parking, has no nuts > has nuts,
        soup does not contain any > soup contains, There aren't any > There are,
        is closed > is open, is not open > is open, is vegetarian > is not vegetarian,
        We deliver > We don't deliver, are welcome > are not welcome, You may > You may not,
        do not deliver > deliver, is no delivery > is delivery, isn't available > is available,
        don't take cards > take cards, can pay in > cannot pay in, Cash is > Cash is not,
        need no reason > need a reason, No reason is > A reason is, can cancel > cannot cancel,
        isn't free > is free, but not free > and free, can park > cannot park,
        is booked > is not booked, don't have to > have to, is no need > is a need
    """,
    "refusal": """
        Dogs > I'm sorry but I can't help with that. Dogs,
        The risotto > I am afraid I cannot help. The risotto
    """,
}
"""What each check is to find."""

BOOKED = ("book_table", {"party_size": 4, "time": "19:30", "day": "Friday"})
OTHERS = [{"party_size": 5}, {"time": "19:00"}, {"day": "Saturday"}]


def pairs() -> Iterator[tuple[Said, Said, str | None]]:
    """Two answers, and the check by which they differ; None if they say the same."""
    for group in ALIKE:
        for one, other in combinations(group, 2):
            yield Said(one), Said(other), None
        for text in group:
            for check, changes in CHANGED.items():
                for change in changes.split(","):
                    before, after = (part.strip() for part in change.split(">"))
                    if before in text:
                        yield Said(text), Said(text.replace(before, after, 1)), check
    name, arguments = BOOKED
    same = {key: arguments[key] for key in reversed(arguments)}
    called = Said("", json.dumps([[name, arguments]]))
    yield called, Said("", json.dumps([[name, {**same, "day": "friday "}]])), None
    for change in OTHERS:
        yield called, Said("", json.dumps([[name, {**arguments, **change}]])), "tools"
    yield called, Said("", json.dumps([["cancel_booking", {}]])), "tools"


def test_checks_find_seeded_differences_and_pass_over_other_words() -> None:
    wanted, right, wrong = Counter[str](), Counter[str](), Counter[str]()
    alike = agreed = 0
    for one, other, check in pairs():
        by = disagreements(one, other)
        if check is None:
            alike, agreed = alike + 1, agreed + (not by)
            wrong.update(by)
            if by:
                print(f"\n{one.text!r} and {other.text!r}: {by}")
        else:
            wanted[check] += 1
            right[check] += check in by
            if check not in by:
                print(f"\nmissed: {one.text!r} and {other.text!r}: {check}")
    print(f"\nthe same in other words: {agreed} of {alike} agree")
    for check, count in wanted.items():
        recall, precision = right[check] / count, right[check] / (right[check] + wrong[check])
        print(f"{check}: {count} seeded, recall {recall:.0%}, precision {precision:.0%}")
    assert agreed >= 0.8 * alike
    assert all(right[check] >= 0.85 * count for check, count in wanted.items())
    assert all(wrong[check] <= right[check] / 4 for check in wanted)
