//! Encoding that the crate for OpenMetrics leaves to its caller.

use std::fmt::Error;

use prometheus_client::encoding::MetricEncoder;

/// Escapes a label's value, which the encoder writes unchanged.
pub(super) fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Encodes one value of a gauge.
pub(super) fn gauge(metric: &mut MetricEncoder<'_>, value: u64) -> Result<(), Error> {
    metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
}
