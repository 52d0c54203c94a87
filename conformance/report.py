"""Two lists of records, what differs between them, and the count of it."""

import difflib
from dataclasses import dataclass


@dataclass
class Record:
    section: str
    title: str
    text: str


class Report:
    def __init__(self):
        self.passed = self.failed = 0
        self.parts = []

    def compare(self, part, left_label, left, right_label, right):
        passed = failed = 0
        missing = Record("", "", "(nothing: this side ended early)")
        for index in range(max(len(left), len(right))):
            a = left[index] if index < len(left) else missing
            b = right[index] if index < len(right) else missing
            if a == b:
                passed += 1
                continue
            failed += 1
            title = a.title or b.title
            print(f"\nDIFFERENT  {part} / {a.section or b.section} / {title}")
            print("\n".join(difflib.unified_diff(
                a.text.split("\n"), b.text.split("\n"), left_label, right_label, lineterm="", n=4,
            )) or f"  {a} | {b}")  # fmt: skip
        self.note(part, passed, failed)

    def check(self, part, ok, text=""):
        """Something that passes or fails as a whole."""
        if not ok:
            print(f"\nFAILED  {part}\n{text}")
        self.note(part, int(ok), int(not ok))

    def note(self, part, passed, failed):
        self.passed += passed
        self.failed += failed
        self.parts.append((part, passed, failed))

    def summary(self):
        print()
        for part, passed, failed in self.parts:
            print(f"{part:<44} {passed:>4} passed  {failed:>4} failed")
        print(f"{self.passed} passed, {self.failed} failed")
