//! Counters for Prometheus, in the OpenMetrics text format.
#![forbid(unsafe_code)]

mod dcgm;
mod encode;

use std::collections::BTreeMap;
use std::fmt::Error;

use paragpu_control::admin::Figures;
use paragpu_control::admin::TurnsInfo;
use paragpu_control::counters::{BOUNDS, Counters};
use paragpu_control::turn::TimeShare;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

pub use self::dcgm::Board;
use self::dcgm::Dcgm;
use self::encode::{escaped, gauge};

/// The content type of [`Report::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of pairs of VM and GPU kept after their sessions ended. It exceeds the
/// VMs of a host, and bounds the cost of guests that keep changing addresses.
const MAX_ENDED: usize = 4096;

/// One number of a session.
type Of = fn(&Counters) -> u64;

/// A VM, and a GPU such as `cuda:0`.
type VmAndGpu = (String, String);

/// The counters of ended sessions.
#[derive(Debug, Default)]
pub struct Ended(BTreeMap<VmAndGpu, Counters>);

impl Ended {
    /// Adds a session's last counters.
    pub fn add(&mut self, vm: &str, gpu: &str, counters: &Counters) {
        let mut key = (vm.to_owned(), gpu.to_owned());
        if self.0.len() >= MAX_ENDED && !self.0.contains_key(&key) {
            key.0 = "others".into();
        }
        let last = Counters {
            device_memory: 0,
            host_memory: 0,
            shadow_memory: 0,
            gpu_percent: None,
            ..*counters
        };
        add(self.0.entry(key).or_insert(Counters::NONE), &last);
    }
}

fn add(to: &mut Counters, more: &Counters) {
    for (sum, more) in [
        (&mut to.calls, more.calls),
        (&mut to.posted, more.posted),
        (&mut to.synchronous, more.synchronous),
        (&mut to.bytes_to_device, more.bytes_to_device),
        (&mut to.bytes_from_device, more.bytes_from_device),
        (&mut to.device_memory, more.device_memory),
        (&mut to.host_memory, more.host_memory),
        (&mut to.shadow_memory, more.shadow_memory),
        (&mut to.launches, more.launches),
        (&mut to.waited, more.waited),
    ] {
        *sum = sum.saturating_add(more);
    }
    let percents = [to.gpu_percent, more.gpu_percent].into_iter().flatten();
    to.gpu_percent = percents.reduce(u32::saturating_add);
    for (sum, more) in to.latency.iter_mut().zip(more.latency) {
        *sum = sum.saturating_add(more);
    }
}

/// Bounds in seconds of the histograms of downtime and delay.
const PAUSES: [f64; 8] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0];

/// Longest pause that is counted, in seconds: a day.
const LONGEST: f64 = 86_400.0;

/// A histogram of durations.
#[derive(Debug, Clone, Copy, Default)]
struct Durations {
    /// Seconds.
    sum: f64,
    /// Counts by bound, and of longer ones.
    counts: [u64; PAUSES.len() + 1],
}

impl Durations {
    fn add(&mut self, seconds: f64) {
        // A compromised worker may report any.
        let seconds = seconds.clamp(0.0, LONGEST);
        let bucket = PAUSES.iter().position(|bound| seconds <= *bound);
        if let Some(count) = self.counts.get_mut(bucket.unwrap_or(PAUSES.len())) {
            *count += 1;
        }
        self.sum += seconds;
    }

    fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
    ) -> Result<(), Error> {
        let bounds = PAUSES.into_iter().chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts).collect();
        encoder
            .encode_descriptor(name, help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(self.sum, self.counts.iter().sum(), &buckets, None)
    }
}

/// The moves of sessions that left this daemon.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moves {
    downtime: Durations,
    delay: Durations,
}

impl Moves {
    /// Adds a successful move.
    pub fn add(&mut self, figures: &Figures) {
        self.downtime.add(figures.blackout_ms / 1e3);
        self.delay.add(figures.longest_delay_ms / 1e3);
    }
}

/// The values of one scrape.
#[derive(Debug, Default)]
pub struct Report {
    /// Counters and sessions by VM and GPU.
    by_vm: BTreeMap<VmAndGpu, (Counters, u64)>,
    /// By VM: bytes of device memory, and the limit; 0 for none.
    pub vms: BTreeMap<String, (u64, u64)>,
    /// By GPU: bytes of memory, and workers that are idle or starting.
    pub gpus: BTreeMap<String, (u64, u64, u64)>,
    /// Sessions begun, guests refused, workers that crashed.
    pub totals: [u64; 3],
    /// Moves of sessions.
    pub moves: Moves,
    /// Guests that wait for a worker, and connections that have not sent a hello.
    pub waiting: [u64; 2],
    /// For sessions that take turns on their GPU: VM, GPU, session, turns.
    pub turns: Vec<(String, String, u64, TurnsInfo)>,
    /// By GPU: the metrics with dcgm-exporter's names.
    pub boards: BTreeMap<String, Board>,
}

/// A part of a share: name, help text, and value.
type Part = (&'static str, &'static str, fn(TimeShare) -> u32);

impl Report {
    /// A report that starts with ended sessions.
    #[must_use]
    pub fn new(ended: &Ended) -> Self {
        let by_vm = ended.0.iter();
        Self {
            by_vm: by_vm
                .map(|(key, counters)| (key.clone(), (*counters, 0)))
                .collect(),
            ..Self::default()
        }
    }

    /// Adds a running session.
    pub fn session(&mut self, vm: &str, gpu: &str, counters: Option<&Counters>) {
        let key = (vm.to_owned(), gpu.to_owned());
        let (sum, sessions) = self.by_vm.entry(key).or_insert((Counters::NONE, 0));
        add(sum, counters.unwrap_or(&Counters::NONE));
        *sessions += 1;
    }

    /// As text, [`CONTENT_TYPE`].
    #[must_use]
    pub fn encode(mut self) -> String {
        let mut registry = Registry::default();
        let mut boards = std::mem::take(&mut self.boards);
        for ((_, gpu), (counters, sessions)) in &self.by_vm {
            if let Some(board) = boards.get_mut(gpu) {
                board.used = board.used.saturating_add(counters.device_memory);
                if *sessions > 0 {
                    let both = board.percent.zip(counters.gpu_percent);
                    board.percent = both.map(|(sum, more)| sum.saturating_add(more));
                }
            }
        }
        registry.register_collector(Box::new(Dcgm(boards)));
        let own = registry.sub_registry_with_prefix("paragpu");
        own.register_collector(Box::new(self));
        let mut out = String::new();
        match text::encode(&mut out, &registry) {
            Ok(()) => out,
            // Writing to a String does not fail.
            Err(Error) => String::new(),
        }
    }

    fn counted(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help, label): (&str, &str, &'static str),
        values: &[(&str, Of)],
    ) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((vm, gpu), (counters, _)) in &self.by_vm {
            let (vm, gpu) = (escaped(vm), escaped(gpu));
            for (value, of) in values {
                let all = [("vm", vm.as_str()), ("gpu", gpu.as_str()), (label, value)];
                let labels = all.get(..if label.is_empty() { 2 } else { 3 });
                metric
                    .encode_family(&labels.unwrap_or_default())?
                    .encode_counter::<NoLabelSet, u64, u64>(&of(counters), None)?;
            }
        }
        Ok(())
    }

    fn present(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        of: fn(&Counters, u64) -> u64,
    ) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ((vm, gpu), (counters, sessions)) in &self.by_vm {
            let labels = [("vm", escaped(vm)), ("gpu", escaped(gpu))];
            gauge(&mut metric.encode_family(&labels)?, of(counters, *sessions))?;
        }
        Ok(())
    }

    /// The sessions' use of GPU time, if it is measured.
    fn utilization(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Percentage of recent GPU time used by sessions";
        let mut metric = encoder.encode_descriptor("gpu_percent", help, None, MetricType::Gauge)?;
        for ((vm, gpu), (counters, _)) in &self.by_vm {
            if let Some(percent) = counters.gpu_percent {
                let labels = [("vm", escaped(vm)), ("gpu", escaped(gpu))];
                gauge(&mut metric.encode_family(&labels)?, percent.into())?;
            }
        }
        Ok(())
    }

    /// Turns on GPUs with shares.
    fn turns(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let labels = |(vm, gpu, session, _): &(String, String, u64, TurnsInfo)| {
            [
                ("vm", escaped(vm)),
                ("gpu", escaped(gpu)),
                ("session", session.to_string()),
            ]
        };
        let help = "GPU time of a session in its turns";
        let mut metric =
            encoder.encode_descriptor("turn_seconds", help, None, MetricType::Counter)?;
        for one in &self.turns {
            metric
                .encode_family(&labels(one))?
                .encode_counter::<NoLabelSet, f64, u64>(&one.3.seconds, None)?;
        }
        let parts: [Part; 3] = [
            (
                "turn_weight",
                "Weight of a session, or of its VM, on its GPU",
                |share| share.weight,
            ),
            (
                "turn_cap_percent",
                "Maximum part of its GPU's time, even of an idle GPU",
                |share| share.cap,
            ),
            (
                "turn_priority",
                "Priority of its turns; the highest runs first",
                |share| share.priority,
            ),
        ];
        for (name, help, part) in parts {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for one in &self.turns {
                let labels = labels(one);
                gauge(
                    &mut metric.encode_family(&labels)?,
                    part(one.3.share).into(),
                )?;
            }
        }
        Ok(())
    }

    fn latencies(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(
            "call_seconds",
            "Latency of synchronous calls, from receipt to reply",
            None,
            MetricType::Histogram,
        )?;
        for ((vm, gpu), (counters, _)) in &self.by_vm {
            let labels = [("vm", escaped(vm)), ("gpu", escaped(gpu))];
            let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e9);
            // A compromised worker may report any counts, and the encoder adds them up.
            let counts = counters.latency.map(|count| count.min(u64::MAX >> 8));
            let buckets: Vec<(f64, u64)> = bounds.chain([f64::MAX]).zip(counts).collect();
            metric
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(
                    counters.waited as f64 / 1e9,
                    counts.iter().sum(),
                    &buckets,
                    None,
                )?;
        }
        Ok(())
    }
}

/// One gauge with one label.
fn labelled<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, label): (&str, &str, &'static str),
    values: impl Iterator<Item = (&'a String, u64)>,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (of, value) in values {
        gauge(&mut metric.encode_family(&[(label, escaped(of))])?, value)?;
    }
    Ok(())
}

impl Collector for Report {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        self.counted(
            encoder,
            ("calls", "Calls executed", "kind"),
            &[
                ("posted", |counters| counters.posted),
                ("synchronous", |counters| counters.synchronous),
            ],
        )?;
        self.counted(
            encoder,
            (
                "copied_bytes",
                "Bytes copied between guests and GPUs",
                "direction",
            ),
            &[
                ("to_device", |counters| counters.bytes_to_device),
                ("from_device", |counters| counters.bytes_from_device),
            ],
        )?;
        self.counted(
            encoder,
            ("launches", "Kernels launched", ""),
            &[("", |counters| counters.launches)],
        )?;
        self.latencies(encoder)?;
        for (durations, about) in [
            (
                &self.moves.downtime,
                (
                    "move_downtime_seconds",
                    "Downtime of sessions that migrated away",
                ),
            ),
            (
                &self.moves.delay,
                (
                    "move_delay_seconds",
                    "Longest delay of a program's call in each of these migrations",
                ),
            ),
        ] {
            durations.encode(encoder, about)?;
        }
        self.utilization(encoder)?;
        self.turns(encoder)?;
        self.present(encoder, ("sessions", "Sessions now"), |_, sessions| {
            sessions
        })?;
        self.present(
            encoder,
            ("device_memory_bytes", "Current device memory of sessions"),
            |counters, _| counters.device_memory,
        )?;
        self.present(
            encoder,
            (
                "host_memory_bytes",
                "Host memory that workers currently hold for guests",
            ),
            |counters, _| counters.host_memory,
        )?;
        self.present(
            encoder,
            (
                "shadow_memory_bytes",
                "Pinned and registered guest memory currently kept as shadows",
            ),
            |counters, _| counters.shadow_memory,
        )?;
        labelled(
            encoder,
            (
                "vm_device_memory_bytes",
                "Device memory of a VM, in all its sessions",
                "vm",
            ),
            self.vms.iter().map(|(vm, (used, _))| (vm, *used)),
        )?;
        labelled(
            encoder,
            (
                "vm_device_memory_limit_bytes",
                "The most that it may have; 0 for no limit",
                "vm",
            ),
            self.vms.iter().map(|(vm, (_, limit))| (vm, *limit)),
        )?;
        labelled(
            encoder,
            ("gpu_memory_bytes", "Memory of a GPU", "gpu"),
            self.gpus.iter().map(|(gpu, (memory, ..))| (gpu, *memory)),
        )?;
        labelled(
            encoder,
            ("workers_idle", "Warm workers of a GPU", "gpu"),
            self.gpus.iter().map(|(gpu, (_, idle, _))| (gpu, *idle)),
        )?;
        labelled(
            encoder,
            ("workers_starting", "Workers that are opening a GPU", "gpu"),
            self.gpus
                .iter()
                .map(|(gpu, (.., starting))| (gpu, *starting)),
        )?;
        for (name, help, value) in [
            ("sessions_begun", "Sessions begun", self.totals[0]),
            ("guests_refused", "Guests that were refused", self.totals[1]),
            ("workers_crashed", "Workers that crashed", self.totals[2]),
        ] {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        for (name, help, value) in [
            (
                "guests_waiting",
                "Guests waiting for a worker",
                self.waiting[0],
            ),
            (
                "connections_pending",
                "Connections that have not sent a hello",
                self.waiting[1],
            ),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(&mut metric, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> Counters {
        let mut counters = Counters {
            posted: 5,
            gpu_percent: Some(30),
            synchronous: 2,
            bytes_to_device: 100,
            device_memory: 64,
            waited: 3_000_000_000,
            ..Counters::NONE
        };
        counters.latency[0] = 1;
        counters.latency[BOUNDS.len()] = 1;
        counters
    }

    #[test]
    fn any_counters_of_a_worker_are_encoded() {
        let most = Counters {
            waited: u64::MAX,
            device_memory: u64::MAX,
            latency: [u64::MAX; BOUNDS.len() + 1],
            ..Counters::NONE
        };
        let mut ended = Ended::default();
        ended.add("a", "cuda:0", &most);
        ended.add("a", "cuda:0", &most);
        let mut report = Report::new(&ended);
        report.session("a", "cuda:0", Some(&most));
        report.moves.add(&Figures {
            blackout_ms: f64::MAX,
            longest_delay_ms: -f64::MAX,
            ..Figures::default()
        });
        let text = report.encode();
        assert!(text.contains("call_seconds_count"));
        assert!(
            text.contains("paragpu_move_downtime_seconds_sum 86400.0\n"),
            "{text}"
        );
        assert!(
            text.contains("paragpu_move_delay_seconds_sum 0.0\n"),
            "{text}"
        );
    }

    #[test]
    fn ended_sessions_stay_counted() {
        let mut ended = Ended::default();
        ended.add("a", "cuda:0", &counters());
        let mut report = Report::new(&ended);
        report.session("a", "cuda:0", Some(&counters()));
        report.session("b\"\\", "cuda:1", None);
        report.vms.insert("a".into(), (64, 128));
        report.moves.add(&Figures {
            blackout_ms: 2.0,
            longest_delay_ms: 40_000.0,
            ..Figures::default()
        });
        let board = Board {
            uuid: "GPU-1".into(),
            model: "H".into(),
            host: "h".into(),
            memory: 3 << 20,
            used: 1 << 20,
            percent: Some(0),
            ..Board::default()
        };
        report.boards.insert("cuda:0".into(), board);
        let turns = TurnsInfo {
            share: TimeShare::default(),
            seconds: 1.5,
        };
        report.turns.push(("a".into(), "cuda:0".into(), 7, turns));
        let text = report.encode();
        for line in [
            "# TYPE paragpu_calls counter",
            "DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-1\",device=\"cuda:0\",modelName=\"H\",Hostname=\"h\"} 1",
            "DCGM_FI_DEV_FB_FREE{gpu=\"0\",UUID=\"GPU-1\",device=\"cuda:0\",modelName=\"H\",Hostname=\"h\"} 1",
            "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\",device=\"cuda:0\",modelName=\"H\",Hostname=\"h\"} 30",
            "paragpu_gpu_percent{vm=\"a\",gpu=\"cuda:0\"} 30",
            "paragpu_turn_seconds_total{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 1.5",
            "paragpu_turn_weight{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 100",
            "paragpu_turn_cap_percent{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 100",
            "paragpu_turn_priority{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 0",
            "paragpu_calls_total{vm=\"a\",gpu=\"cuda:0\",kind=\"posted\"} 10",
            "paragpu_copied_bytes_total{vm=\"a\",gpu=\"cuda:0\",direction=\"to_device\"} 200",
            "paragpu_launches_total{vm=\"b\\\"\\\\\",gpu=\"cuda:1\"} 0",
            "paragpu_device_memory_bytes{vm=\"a\",gpu=\"cuda:0\"} 64",
            "paragpu_sessions{vm=\"a\",gpu=\"cuda:0\"} 1",
            "paragpu_call_seconds_bucket{le=\"0.000001024\",vm=\"a\",gpu=\"cuda:0\"} 2",
            "paragpu_call_seconds_bucket{le=\"+Inf\",vm=\"a\",gpu=\"cuda:0\"} 4",
            "paragpu_call_seconds_count{vm=\"a\",gpu=\"cuda:0\"} 4",
            "paragpu_call_seconds_sum{vm=\"a\",gpu=\"cuda:0\"} 6.0",
            "paragpu_vm_device_memory_limit_bytes{vm=\"a\"} 128",
            "paragpu_move_downtime_seconds_bucket{le=\"0.001\"} 0",
            "paragpu_move_downtime_seconds_bucket{le=\"0.003\"} 1",
            "paragpu_move_delay_seconds_bucket{le=\"10.0\"} 0",
            "paragpu_move_delay_seconds_bucket{le=\"+Inf\"} 1",
            "paragpu_move_delay_seconds_sum 40.0",
            "paragpu_sessions_begun_total 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_dashboard_shows_existing_metrics() {
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../../docs/grafana.json")).unwrap();
        let mut report = Report::default();
        report.session("a", "cuda:0", Some(&counters()));
        report.vms.insert("a".into(), (64, 128));
        report.gpus.insert("cuda:0".into(), (1, 1, 1));
        let board = Board {
            percent: Some(0),
            ..Board::default()
        };
        report.boards.insert("cuda:0".into(), board);
        let turns = TurnsInfo {
            share: TimeShare::default(),
            seconds: 1.5,
        };
        report.turns.push(("a".into(), "cuda:0".into(), 7, turns));
        let text = report.encode();
        let exported = |name: &str| {
            let mut lines = text.lines().map(|line| line.split(['{', ' ']).next());
            lines.any(|first| first == Some(name))
        };
        let mut names = 0;
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                let words = expression.split(|c: char| !c.is_alphanumeric() && c != '_');
                for name in words.filter(|w| w.starts_with("paragpu_") || w.starts_with("DCGM_")) {
                    assert!(exported(name), "{name}\n{text}");
                    names += 1;
                }
            }
        }
        assert!(names >= 10);
    }

    #[test]
    fn excess_names_are_combined() {
        let mut ended = Ended::default();
        for number in 0..2 * MAX_ENDED {
            ended.add(&number.to_string(), "cuda:0", &counters());
        }
        assert_eq!(ended.0.len(), MAX_ENDED + 1);
        let others = ended.0[&("others".to_owned(), "cuda:0".to_owned())];
        assert_eq!(others.posted, 5 * MAX_ENDED as u64);
        assert_eq!(others.device_memory, 0);
    }
}
