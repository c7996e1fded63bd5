//! Activity between two samples of the daemon's counters.

use std::collections::BTreeMap;
use std::time::Instant;

use paragpu_control::admin::{Request, Response, SessionInfo, Stats};
use paragpu_control::turn::TimeShare;
use serde::Serialize;

use crate::arguments::Sort;
use crate::control::{Control, unexpected};
use crate::error::Error;

/// A sample of the daemon's counters.
pub(super) struct Sample {
    at: Instant,
    sessions: BTreeMap<u64, SessionInfo>,
    pub(super) stats: Stats,
}

/// One look: what happened between two samples.
#[derive(Debug, Serialize)]
pub(super) struct View {
    /// Seconds between the two.
    pub(super) interval: f64,
    pub(super) gpus: Vec<Gpu>,
    pub(super) vms: Vec<Vm>,
    pub(super) sessions: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub(super) struct Gpu {
    /// `cuda:0`.
    pub(super) gpu: String,
    pub(super) name: String,
    pub(super) sessions: u64,
    /// Bytes of its memory.
    pub(super) memory: u64,
    /// Bytes that sessions have of it.
    pub(super) device_memory: u64,
    pub(super) calls_per_second: f64,
    pub(super) bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Vm {
    pub(super) vm: String,
    pub(super) sessions: u64,
    pub(super) device_memory: u64,
    /// 0 for no limit.
    pub(super) device_memory_limit: u64,
    pub(super) calls_per_second: f64,
    pub(super) bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) session: u64,
    pub(super) vm: String,
    pub(super) guest_pid: u32,
    pub(super) gpu: String,
    pub(super) communicator: String,
    pub(super) calls_per_second: f64,
    pub(super) launches_per_second: f64,
    pub(super) bytes_to_device_per_second: f64,
    pub(super) bytes_from_device_per_second: f64,
    pub(super) device_memory: u64,
    /// Bytes of pinned and registered memory that are kept as copies.
    pub(super) shadow_memory: u64,
    /// Its part of the GPU's time in turns; `None` if it takes none.
    pub(super) time: Option<f64>,
    /// The weight, cap and priority of its turns.
    pub(super) share: Option<TimeShare>,
    /// Seconds since it began.
    pub(super) age: f64,
    /// Whether its worker counted both times; the rates are zero if not.
    pub(super) counted: bool,
}

impl Row {
    fn bytes_per_second(&self) -> f64 {
        self.bytes_to_device_per_second + self.bytes_from_device_per_second
    }
}

pub(super) fn sample(control: &Control) -> Result<Sample, Error> {
    let Response::Stats(stats) = control.ask(&Request::Stats {})? else {
        return Err(unexpected());
    };
    let Response::Sessions { sessions } = control.ask(&Request::List {})? else {
        return Err(unexpected());
    };
    Ok(Sample {
        at: Instant::now(),
        sessions: sessions.into_iter().map(|one| (one.id, one)).collect(),
        stats,
    })
}

/// The activity from `before` to `now`.
pub(super) fn view(before: &Sample, now: &Sample, sort: Sort) -> View {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let mut rows: Vec<Row> = now
        .sessions
        .values()
        .map(|session| row(before.sessions.get(&session.id), session, seconds))
        .collect();
    let key = |row: &Row| match sort {
        Sort::Calls => row.calls_per_second,
        Sort::Bytes => row.bytes_per_second(),
        Sort::Memory => row.device_memory as f64,
        Sort::Age => row.age,
    };
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.session.cmp(&b.session)));
    let sums = |own: &dyn Fn(&Row) -> bool| {
        rows.iter()
            .filter(|row| own(row))
            .fold((0, 0.0, 0.0), |sum, row| {
                (
                    sum.0 + row.device_memory,
                    sum.1 + row.calls_per_second,
                    sum.2 + row.bytes_per_second(),
                )
            })
    };
    let gpus = now.stats.devices.iter().map(|device| {
        let (memory, calls, moved) = sums(&|row| row.gpu == device.device);
        Gpu {
            gpu: device.device.clone(),
            name: device.name.clone(),
            sessions: rows.iter().filter(|row| row.gpu == device.device).count() as u64,
            memory: device.memory,
            device_memory: memory,
            calls_per_second: calls,
            bytes_per_second: moved,
        }
    });
    let vms = now.stats.vms.iter().map(|vm| {
        let (_, calls, moved) = sums(&|row| row.vm == vm.vm);
        Vm {
            vm: vm.vm.clone(),
            sessions: vm.sessions,
            device_memory: vm.device_memory,
            device_memory_limit: vm.device_memory_limit,
            calls_per_second: calls,
            bytes_per_second: moved,
        }
    });
    View {
        interval: seconds,
        gpus: gpus.collect(),
        vms: vms.collect(),
        sessions: rows,
    }
}

fn row(before: Option<&SessionInfo>, now: &SessionInfo, seconds: f64) -> Row {
    // One that began meanwhile has all it did from then.
    let counted = now.counted && before.is_none_or(|before| before.counted);
    let seconds = match before {
        Some(_) => seconds,
        None => seconds.min(now.age),
    };
    let rate = |of: fn(&SessionInfo) -> u64| match counted && seconds > 0.0 {
        true => of(now).saturating_sub(before.map_or(0, of)) as f64 / seconds,
        false => 0.0,
    };
    Row {
        session: now.id,
        vm: now.vm.clone(),
        guest_pid: now.guest_pid,
        gpu: now.device.clone(),
        communicator: now.communicator.clone(),
        calls_per_second: rate(|one| one.calls),
        launches_per_second: rate(|one| one.launches),
        bytes_to_device_per_second: rate(|one| one.bytes_to_device),
        bytes_from_device_per_second: rate(|one| one.bytes_from_device),
        device_memory: now.device_memory,
        shadow_memory: now.shadow_memory,
        time: now.turns.map(|turns| {
            let before = before.and_then(|before| before.turns);
            let more = turns.seconds - before.map_or(0.0, |before| before.seconds);
            (more / seconds.max(f64::EPSILON)).clamp(0.0, 1.0)
        }),
        share: now.turns.map(|turns| turns.share),
        age: now.age,
        counted,
    }
}

#[cfg(test)]
mod tests {
    use paragpu_control::admin::{Activity, TurnsInfo};

    use super::*;

    fn session(id: u64, calls: u64, age: f64) -> SessionInfo {
        SessionInfo {
            id,
            vm: "blue".into(),
            guest_pid: 1,
            worker_pid: 2,
            device: "cuda:0".into(),
            ordinal: 0,
            communicator: "pci".into(),
            age,
            calls,
            posted: 0,
            synchronous: calls,
            launches: 0,
            bytes_to_device: 0,
            bytes_from_device: 0,
            device_memory: 1 << 20,
            host_memory: 0,
            shadow_memory: 0,
            counted: true,
            ending: false,
            activity: Activity::Serving,
            checkpoint: None,
            turns: None,
            job: None,
        }
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let row_of = |before: Option<&SessionInfo>, now: &SessionInfo| row(before, now, 2.0);
        let before = session(1, 100, 10.0);
        assert_eq!(
            row_of(Some(&before), &session(1, 300, 12.0)).calls_per_second,
            100.0
        );
        // One that began half a second ago.
        assert_eq!(row_of(None, &session(2, 300, 0.5)).calls_per_second, 600.0);
        let uncounted = SessionInfo {
            counted: false,
            ..session(1, 0, 12.0)
        };
        let row = row_of(Some(&before), &uncounted);
        assert!(!row.counted);
        assert_eq!(row.calls_per_second, 0.0);
    }

    #[test]
    fn time_in_turns_is_a_part_of_the_time_between() {
        let at = |seconds| SessionInfo {
            turns: Some(TurnsInfo {
                share: TimeShare::default(),
                seconds,
            }),
            ..session(1, 0, 12.0)
        };
        let now = row(Some(&at(1.0)), &at(2.5), 2.0);
        assert_eq!(now.time, Some(0.75));
        assert_eq!(now.share, Some(TimeShare::default()));
        assert_eq!(row(None, &session(1, 0, 12.0), 2.0).time, None);
    }
}
