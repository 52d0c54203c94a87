"""What one side answers, kept for the comparison."""

from report import Record


class Recorder:
    """Asks one server; the parts add how."""

    def __init__(self, target, records):
        self.target, self.records, self.section = target, records, ""

    def fresh(self, section):
        self.section = section
        self.target.fresh()

    def record(self, title, text):
        self.target.check_alive()
        names = self.target.names
        self.records.append(Record(self.section, names.apply(title), names.apply(text)))
