//! Counters for Prometheus, in the OpenMetrics text format.
#![forbid(unsafe_code)]

mod dcgm;
mod encode;
mod families;

use std::collections::BTreeMap;
use std::fmt::Error;

use paragpu_control::admin::Figures;
use paragpu_control::admin::TurnsInfo;
use paragpu_control::counters::Counters;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

pub use self::dcgm::Board;
use self::dcgm::Dcgm;

/// The content type of [`Report::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of pairs of VM and GPU kept after their sessions ended. It exceeds the
/// VMs of a host, and bounds the cost of guests that keep changing addresses.
const MAX_ENDED: usize = 4096;

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

/// Device memory of a VM, in all its sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct VmMemory {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that it may have; 0 for no limit.
    pub limit: u64,
}

/// A GPU, and its workers without sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gpu {
    /// Bytes of its memory.
    pub memory: u64,
    /// Workers that are ready for a session.
    pub idle: u64,
    /// Workers that are opening it.
    pub starting: u64,
}

/// A session that takes turns on its GPU.
#[derive(Debug, Clone)]
pub struct Paced {
    /// Its VM.
    pub vm: String,
    /// Its GPU, such as `cuda:0`.
    pub gpu: String,
    /// Its number on this host.
    pub session: u64,
    /// Its share, and the turns that it has had.
    pub turns: TurnsInfo,
}

/// Numbers of the whole daemon.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Sessions begun since the daemon started.
    pub sessions_begun: u64,
    /// Guests refused since then.
    pub guests_refused: u64,
    /// Workers that crashed since then.
    pub workers_crashed: u64,
    /// Guests that wait for a worker now.
    pub guests_waiting: u64,
    /// Connections that have not sent a hello yet.
    pub connections_pending: u64,
}

/// The values of one scrape.
#[derive(Debug, Default)]
pub struct Report {
    /// Counters and sessions by VM and GPU.
    by_vm: BTreeMap<VmAndGpu, (Counters, u64)>,
    /// Device memory by VM.
    pub vms: BTreeMap<String, VmMemory>,
    /// By GPU.
    pub gpus: BTreeMap<String, Gpu>,
    /// Of the whole daemon.
    pub totals: Totals,
    /// Moves of sessions.
    pub moves: Moves,
    /// Sessions that take turns on their GPU.
    pub turns: Vec<Paced>,
    /// By GPU: the metrics with dcgm-exporter's names.
    pub boards: BTreeMap<String, Board>,
}

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_control::counters::BOUNDS;
    use paragpu_control::turn::TimeShare;

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

    const MEMORY: VmMemory = VmMemory {
        used: 64,
        limit: 128,
    };

    fn paced() -> Paced {
        Paced {
            vm: "a".into(),
            gpu: "cuda:0".into(),
            session: 7,
            turns: TurnsInfo {
                share: TimeShare::default(),
                seconds: 1.5,
            },
        }
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
        report.vms.insert("a".into(), MEMORY);
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
        report.turns.push(paced());
        let text = report.encode();
        for line in [
            "# TYPE paragpu_calls counter",
            "DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-1\",device=\"cuda:0\",modelName=\"H\",Hostname=\"h\"} 1",
            "DCGM_FI_DEV_FB_FREE{gpu=\"0\",UUID=\"GPU-1\",device=\"cuda:0\",modelName=\"H\",Hostname=\"h\"} 1",
            "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\",device=\"cuda:0\",modelName=\"H\",Hostname=\"h\"} 30",
            "paragpu_gpu_percent{vm=\"a\",gpu=\"cuda:0\"} 30",
            "paragpu_turn_seconds_total{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 1.5",
            "paragpu_turn_weight{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 100.0",
            "paragpu_turn_cap_percent{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 100.0",
            "paragpu_turn_priority{vm=\"a\",gpu=\"cuda:0\",session=\"7\"} 0.0",
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
        report.vms.insert("a".into(), MEMORY);
        report.gpus.insert("cuda:0".into(), Gpu::default());
        let board = Board {
            percent: Some(0),
            ..Board::default()
        };
        report.boards.insert("cuda:0".into(), board);
        report.turns.push(paced());
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
