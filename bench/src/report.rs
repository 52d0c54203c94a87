//! What was measured, for people (a table that is Markdown, too) and for programs.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::meter::{Measurement, Meter};
use crate::plan::Plan;

/// All rounds of all workloads, added up for each workload and server.
pub struct Report {
    baseline: Option<String>,
    entries: Vec<Entry>,
}

struct Entry {
    label: String,
    server: String,
    meter: Meter,
    elapsed: Duration,
    cpu: Option<Duration>,
    resident_bytes: Option<u64>,
    rates: Vec<f64>,
    note: Option<String>,
}

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub workload: String,
    pub server: String,
    pub operations: u64,
    pub failures: u64,
    pub seconds: f64,
    pub operations_per_second: f64,
    /// Of the single rounds.
    pub operations_per_second_lowest: f64,
    pub operations_per_second_highest: f64,
    pub p50_micros: f64,
    pub p99_micros: f64,
    pub p999_micros: f64,
    pub largest_micros: f64,
    pub server_cpu_micros_per_operation: Option<f64>,
    pub server_resident_bytes: Option<u64>,
    /// Compared with the baseline server, if there is another one.
    pub ratio: Option<Ratio>,
    pub note: Option<String>,
    pub first_failure: Option<String>,
}

/// This server's figure divided by the baseline's.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratio {
    pub operations_per_second: f64,
    pub p99: f64,
    pub server_cpu: Option<f64>,
}

impl Report {
    pub(crate) fn new(plan: &Plan) -> Report {
        let last = plan.servers.last().filter(|_| plan.servers.len() > 1).map(|server| server.name.clone());
        Report { baseline: plan.baseline.clone().or(last), entries: Vec::new() }
    }

    pub(crate) fn add(&mut self, measurements: Vec<Measurement>) {
        for measurement in measurements {
            let rate = rate(measurement.meter.latencies.count(), measurement.elapsed);
            let known = self
                .entries
                .iter_mut()
                .find(|entry| entry.label == measurement.label && entry.server == measurement.server);
            match known {
                Some(entry) => {
                    entry.meter.merge(measurement.meter);
                    entry.elapsed += measurement.elapsed;
                    entry.cpu = entry.cpu.zip(measurement.cpu).map(|(left, right)| left + right);
                    entry.resident_bytes = measurement.resident_bytes;
                    entry.rates.push(rate);
                    entry.note = measurement.note;
                }
                None => self.entries.push(Entry {
                    label: measurement.label,
                    server: measurement.server,
                    meter: measurement.meter,
                    elapsed: measurement.elapsed,
                    cpu: measurement.cpu,
                    resident_bytes: measurement.resident_bytes,
                    rates: vec![rate],
                    note: measurement.note,
                }),
            }
        }
        // Stable: workloads stay in the order in which they ran, and their servers stand together.
        let order: Vec<String> = self.entries.iter().map(|entry| entry.label.clone()).collect();
        self.entries.sort_by_key(|entry| order.iter().position(|label| *label == entry.label));
    }

    /// How many operations failed; a run with failures has failed.
    pub fn failures(&self) -> u64 {
        self.entries.iter().map(|entry| entry.meter.failures).sum()
    }

    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.entries.iter().map(row).collect();
        if let Some(baseline) = &self.baseline {
            let baselines: Vec<Row> = rows.iter().filter(|row| row.server == *baseline).cloned().collect();
            for row in rows.iter_mut().filter(|row| row.server != *baseline) {
                row.ratio = baselines.iter().find(|other| other.workload == row.workload).map(|other| Ratio {
                    operations_per_second: row.operations_per_second / other.operations_per_second,
                    p99: row.p99_micros / other.p99_micros,
                    server_cpu: row
                        .server_cpu_micros_per_operation
                        .zip(other.server_cpu_micros_per_operation)
                        .map(|(mine, theirs)| mine / theirs),
                });
            }
        }
        rows
    }

    /// An aligned Markdown table, and beneath it what does not fit into a column.
    pub fn table(&self) -> String {
        let rows = self.rows();
        let mut header = vec!["workload", "server", "op/s", "p50", "p99", "p99.9"];
        let with_usage = rows.iter().any(|row| row.server_resident_bytes.is_some());
        if with_usage {
            header.extend(["CPU µs/op", "resident"]);
        }
        let versus = self.baseline.as_ref().map(|name| format!("op/s, p99, CPU of {name}"));
        header.extend(versus.as_deref());
        let mut lines: Vec<Vec<String>> = vec![header.into_iter().map(str::to_owned).collect()];
        for row in &rows {
            let mut line = vec![
                row.workload.clone(),
                row.server.clone(),
                spread(row),
                time(row.p50_micros),
                time(row.p99_micros),
                time(row.p999_micros),
            ];
            if with_usage {
                line.push(row.server_cpu_micros_per_operation.map_or("–".into(), |micros| format!("{micros:.1}")));
                line.push(row.server_resident_bytes.map_or("–".into(), |bytes| format!("{} MB", bytes / 1_000_000)));
            }
            if versus.is_some() {
                line.push(row.ratio.map_or("1".into(), |ratio| {
                    let cpu = ratio.server_cpu.map_or("–".into(), |cpu| format!("×{cpu:.2}"));
                    format!("×{:.2}, ×{:.2}, {cpu}", ratio.operations_per_second, ratio.p99)
                }));
            }
            lines.push(line);
        }
        let mut text = aligned(&lines);
        for row in &rows {
            if let Some(note) = &row.note {
                let _ = writeln!(text, "\n{} on {}: {note}", row.workload, row.server);
            }
            if let Some(failure) = &row.first_failure {
                let _ =
                    writeln!(text, "\n{} on {}: {} failed, first: {failure}", row.workload, row.server, row.failures);
            }
        }
        text
    }
}

fn row(entry: &Entry) -> Row {
    let operations = entry.meter.latencies.count();
    let micros = |share| entry.meter.latencies.quantile(share).as_nanos() as f64 / 1_000.0;
    Row {
        workload: entry.label.clone(),
        server: entry.server.clone(),
        operations,
        failures: entry.meter.failures,
        seconds: entry.elapsed.as_secs_f64(),
        operations_per_second: rate(operations, entry.elapsed),
        operations_per_second_lowest: entry.rates.iter().copied().fold(f64::INFINITY, f64::min),
        operations_per_second_highest: entry.rates.iter().copied().fold(0.0, f64::max),
        p50_micros: micros(0.5),
        p99_micros: micros(0.99),
        p999_micros: micros(0.999),
        largest_micros: entry.meter.latencies.largest().as_nanos() as f64 / 1_000.0,
        server_cpu_micros_per_operation: entry
            .cpu
            .filter(|_| operations > 0)
            .map(|cpu| cpu.as_nanos() as f64 / 1_000.0 / operations as f64),
        server_resident_bytes: entry.resident_bytes,
        ratio: None,
        note: entry.note.clone(),
        first_failure: entry.meter.first_failure.clone(),
    }
}

fn rate(operations: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { operations as f64 / elapsed.as_secs_f64() }
}

fn spread(row: &Row) -> String {
    let half = (row.operations_per_second_highest - row.operations_per_second_lowest) / 2.0;
    let percent = 100.0 * half / row.operations_per_second.max(1.0);
    match percent >= 0.5 {
        true => format!("{:.0} ± {percent:.0} %", row.operations_per_second),
        false => format!("{:.0}", row.operations_per_second),
    }
}

fn time(micros: f64) -> String {
    match micros {
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 10_000.0 => format!("{:.2} ms", micros / 1_000.0),
        micros if micros < 1_000_000.0 => format!("{:.1} ms", micros / 1_000.0),
        micros => format!("{:.2} s", micros / 1_000_000.0),
    }
}

fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines[0].len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Names stand to the left, figures to the right.
            let _ = if column < 2 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
        }
        text.push_str("|\n");
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let _ = write!(text, "|{}{}", "-".repeat(width + 1), if column < 2 { "-" } else { ":" });
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Server;

    fn measurement(server: &str, operations: u64, failures: u64) -> Measurement {
        let mut meter = Meter::default();
        for _ in 0..operations {
            meter.record(Ok(Duration::from_micros(200)));
        }
        for _ in 0..failures {
            meter.fail("broken".to_owned());
        }
        Measurement {
            label: "put".to_owned(),
            server: server.to_owned(),
            meter,
            elapsed: Duration::from_secs(1),
            cpu: Some(Duration::from_millis(operations)),
            resident_bytes: Some(5_000_000),
            note: None,
        }
    }

    fn report() -> Report {
        let server = |name: &str| Server { name: name.into(), endpoints: vec![], pids: vec![] };
        Report::new(&Plan { servers: vec![server("tenure"), server("etcd")], ..Plan::default() })
    }

    #[test]
    fn rounds_add_up_and_are_compared_with_the_last_server() {
        let mut report = report();
        for _ in 0..2 {
            report.add(vec![measurement("tenure", 300, 0)]);
            report.add(vec![measurement("etcd", 100, 0)]);
        }
        let rows = report.rows();
        assert_eq!((rows[0].operations, rows[0].operations_per_second), (600, 300.0));
        assert_eq!(rows[0].server_cpu_micros_per_operation, Some(1_000.0));
        assert_eq!(rows[0].ratio.unwrap().operations_per_second, 3.0);
        assert!(rows[1].ratio.is_none());
        assert_eq!(report.failures(), 0);
        let table = report.table();
        assert!(table.lines().next().unwrap().contains("op/s, p99, CPU of etcd"), "{table}");
        assert!(table.contains("×3.00, ×1.00, ×1.00"), "{table}");
        let lengths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{table}");
    }

    #[test]
    fn failures_are_counted_and_the_first_is_told() {
        let mut report = report();
        report.add(vec![measurement("tenure", 1, 2)]);
        assert_eq!(report.failures(), 2);
        assert!(report.table().contains("put on tenure: 2 failed, first: broken"));
    }

    #[test]
    fn rows_are_plain_json() {
        let mut report = report();
        report.add(vec![measurement("tenure", 10, 0)]);
        let json = serde_json::to_value(report.rows()).unwrap();
        assert_eq!(json[0]["operations"], 10);
        assert_eq!(json[0]["server_resident_bytes"], 5_000_000);
    }
}
