//! How results are written: for people as a table, for programs as JSON.
//!
//! A verb hands over a [`Listing`] (rows of the same kind) or a [`Record`] (one thing with a few
//! fields). `json` is the whole result as one document, `jsonl` one line for each row, `wide` a
//! table with the columns that are rarely needed.
//!
//! Data goes to stdout, and a failure to write it is an error. Everything else goes to stderr by [`note`] and
//! [`report`], which never fail: a reader that is gone must not end what runs.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::words;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Columns for people
    #[default]
    Table,
    /// All columns
    Wide,
    /// One JSON document
    Json,
    /// One JSON object a line
    Jsonl,
}

impl Format {
    pub fn is_json(self) -> bool {
        matches!(self, Format::Json | Format::Jsonl)
    }
}

/// A column of a listing.
pub struct Column {
    pub title: &'static str,
    /// Shown only by `-o wide`.
    pub wide: bool,
    pub right: bool,
}

pub const fn column(title: &'static str) -> Column {
    Column { title, wide: false, right: false }
}

pub const fn number(title: &'static str) -> Column {
    Column { title, wide: false, right: true }
}

pub const fn wide(title: &'static str) -> Column {
    Column { title, wide: true, right: false }
}

/// Rows for people, with the same as JSON for programs.
pub struct Listing {
    pub columns: &'static [Column],
    pub rows: Vec<Row>,
    /// Fields of the JSON document that belong to the listing as a whole.
    pub about: Map<String, Value>,
    /// What the rows are called in the JSON document.
    pub name: &'static str,
}

pub struct Row {
    /// One for each column.
    pub cells: Vec<String>,
    pub json: Value,
}

impl Listing {
    pub fn new(name: &'static str, columns: &'static [Column]) -> Listing {
        Listing { columns, rows: Vec::new(), about: Map::new(), name }
    }

    pub fn about(mut self, name: &str, value: impl Into<Value>) -> Listing {
        self.about.insert(name.to_owned(), value.into());
        self
    }

    pub fn row(&mut self, cells: Vec<String>, json: Value) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(Row { cells, json });
    }

    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Table => self.table(|column| !column.wide),
            Format::Wide => self.table(|_| true),
            Format::Json => {
                let mut document = self.about.clone();
                document.insert(self.name.to_owned(), self.rows.iter().map(|row| row.json.clone()).collect());
                pretty(&Value::from(document))
            }
            Format::Jsonl => self.rows.iter().map(|row| format!("{}\n", row.json)).collect(),
        }
    }

    fn table(&self, shown: impl Fn(&Column) -> bool) -> String {
        let shown: Vec<usize> = (0..self.columns.len()).filter(|index| shown(&self.columns[*index])).collect();
        let mut table = plain_table();
        table.set_header(shown.iter().map(|index| self.columns[*index].title));
        for row in &self.rows {
            table.add_row(shown.iter().map(|index| row.cells[*index].as_str()));
        }
        for (place, index) in shown.iter().enumerate() {
            let column = table.column_mut(place).expect("there is one for each title");
            column.set_padding((0, 2));
            if self.columns[*index].right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        format!("{}\n", table.trim_fmt())
    }

    pub fn print(&self, format: Format) -> io::Result<()> {
        print(&self.render(format))
    }
}

/// One result: a sentence for people, its fields for programs.
pub struct Record {
    pub sentence: String,
    pub json: Value,
}

impl Record {
    pub fn print(&self, format: Format) -> io::Result<()> {
        match format {
            Format::Table | Format::Wide => print(&format!("{}\n", self.sentence)),
            Format::Json => print(&pretty(&self.json)),
            Format::Jsonl => print(&format!("{}\n", self.json)),
        }
    }
}

/// Whether [`report`] writes JSON. The command line decides it once, before any verb runs.
static ERRORS_AS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes [`report`] write errors as the format asks for.
pub fn report_as(format: Format) {
    ERRORS_AS_JSON.store(format.is_json(), Ordering::Relaxed);
}

/// Writes a line to stderr. Unlike `eprintln!` it does not panic if stderr is closed or full.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error to stderr: a line for people, or a JSON object where the output is JSON. If stderr is gone,
/// the exit code has to say it.
pub fn report(error: &anyhow::Error) {
    report_text(&words::of(error), words::is_outcome_unknown(error));
}

pub fn report_text(text: &str, is_outcome_unknown: bool) {
    if ERRORS_AS_JSON.load(Ordering::Relaxed) {
        let mut document = json!({ "error": text });
        if is_outcome_unknown {
            document["outcome"] = "unknown".into();
        }
        return note(document);
    }
    match color_on_stderr() {
        true => note(format_args!("\x1b[1;31merror:\x1b[0m {text}")),
        false => note(format_args!("error: {text}")),
    }
}

/// Writes data and flushes it, for readers that go line by line.
pub fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

pub fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// A lease or member id as people see it; none for 0.
pub fn id_json(id: i64) -> Value {
    if id == 0 { Value::Null } else { Value::from(format!("{id:x}")) }
}

pub fn id_text(id: i64) -> String {
    if id == 0 { "-".to_owned() } else { format!("{id:x}") }
}

pub fn color_on_stderr() -> bool {
    io::stderr().is_terminal() && color_is_welcome()
}

pub fn color_on_stdout() -> bool {
    io::stdout().is_terminal() && color_is_welcome()
}

fn color_is_welcome() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[column("NAME"), number("SIZE"), wide("NOTE")];

    fn listing() -> Listing {
        let mut listing = Listing::new("things", COLUMNS).about("revision", 7);
        listing.row(vec!["a".into(), "5".into(), "first".into()], json!({"name": "a"}));
        listing.row(vec!["longer".into(), "1000".into(), "".into()], json!({"name": "longer"}));
        listing
    }

    #[test]
    fn tables_have_neither_borders_nor_trailing_blanks() {
        assert_eq!(listing().render(Format::Table), "NAME    SIZE\na          5\nlonger  1000\n");
        assert_eq!(listing().render(Format::Wide), "NAME    SIZE  NOTE\na          5  first\nlonger  1000\n");
    }

    #[test]
    fn json_is_one_document_and_jsonl_one_line_each() {
        let document: Value = serde_json::from_str(&listing().render(Format::Json)).unwrap();
        assert_eq!(document, json!({"revision": 7, "things": [{"name": "a"}, {"name": "longer"}]}));
        assert_eq!(listing().render(Format::Jsonl), "{\"name\":\"a\"}\n{\"name\":\"longer\"}\n");
    }
}
