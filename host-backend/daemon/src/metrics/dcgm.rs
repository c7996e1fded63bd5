//! GPU metrics under the names of dcgm-exporter, which existing dashboards use.

use std::collections::BTreeMap;
use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::{escaped, gauge};

/// A GPU, for dcgm-exporter's metrics.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// Its number on this host.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// This host.
    pub host: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes used by sessions.
    pub used: u64,
    /// Percent of its recent time used by sessions; `None` if nothing measures it.
    pub percent: Option<u32>,
}

/// Reads a gauge of a GPU.
type Reading = fn(&Board) -> Option<u64>;

/// Metrics with dcgm-exporter's names and labels. Only those that this daemon can
/// measure: memory and time of its sessions.
#[derive(Debug)]
pub(super) struct Dcgm(pub(super) BTreeMap<String, Board>);

impl Collector for Dcgm {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        const MIB: u64 = 1 << 20;
        let gauges: [(&str, &str, Reading); 4] = [
            (
                "DCGM_FI_DEV_GPU_UTIL",
                "Percentage of recent GPU time used by sessions",
                |board| board.percent.map(|percent| percent.min(100).into()),
            ),
            ("DCGM_FI_DEV_FB_TOTAL", "Memory of a GPU in MiB", |board| {
                Some(board.memory / MIB)
            }),
            (
                "DCGM_FI_DEV_FB_USED",
                "GPU memory used by sessions in MiB",
                |board| Some(board.used / MIB),
            ),
            ("DCGM_FI_DEV_FB_FREE", "Free GPU memory in MiB", |board| {
                Some(board.memory.saturating_sub(board.used) / MIB)
            }),
        ];
        for (name, help, of) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (device, board) in &self.0 {
                let Some(value) = of(board) else { continue };
                let labels = [
                    ("gpu", board.index.to_string()),
                    ("UUID", escaped(&board.uuid)),
                    ("device", escaped(device)),
                    ("modelName", escaped(&board.model)),
                    ("Hostname", escaped(&board.host)),
                ];
                gauge(&mut metric.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }
}
