//! The two forms of `/metrics`: Prometheus' text format, and OpenMetrics for those who ask for it.

use http::HeaderMap;
use http::header::ACCEPT;

/// A form in which metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Prometheus' text format 0.0.4, which everything reads.
    Prometheus,
    OpenMetrics,
}

impl Form {
    /// The form that a request accepts.
    pub fn accepted(headers: &HeaderMap) -> Form {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let asks = accepted.flat_map(|value| value.split(',')).any(|part| {
            let mut words = part.split(';').map(str::trim);
            let is_meant = words.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
            is_meant && !words.any(|word| matches!(word, "q=0" | "q=0.0"))
        });
        if asks { Form::OpenMetrics } else { Form::Prometheus }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Form::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Rewrites OpenMetrics text: a counter's description has the name of its samples, which end in `_total`, and there
/// are neither units nor an end mark.
pub(super) fn to_prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = Some(rest);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, words)) = help.take().and_then(|help| help.split_once(' ')) {
                text.push_str(&format!("# HELP {name}{suffix} {words}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn open_metrics_is_for_those_who_ask() {
        let form = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            Form::accepted(&headers)
        };
        assert_eq!(Form::accepted(&HeaderMap::new()), Form::Prometheus);
        assert_eq!(form("*/*"), Form::Prometheus);
        assert_eq!(form("text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), Form::Prometheus);
        assert_eq!(form("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"), Form::OpenMetrics);
        assert_eq!(form("text/plain, application/openmetrics-text; q=0"), Form::Prometheus);
    }

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let open = "# HELP a_requests Finished.\n# TYPE a_requests counter\na_requests_total{x=\"1\"} 2\n\
                    # HELP b Now.\n# TYPE b gauge\n# UNIT b bytes\nb 3\n# EOF\n";
        let expected = "# HELP a_requests_total Finished.\n# TYPE a_requests_total counter\n\
                        a_requests_total{x=\"1\"} 2\n# HELP b Now.\n# TYPE b gauge\nb 3\n";
        assert_eq!(to_prometheus(open), expected);
    }
}
