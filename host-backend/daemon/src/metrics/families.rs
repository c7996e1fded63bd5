//! The metrics of a report, one function for each subject.

use std::fmt::Error;

use paragpu_control::counters::{BOUNDS, Counters};
use paragpu_control::turn::TimeShare;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::encode::{escaped, gauge};
use super::{Durations, PAUSES, Paced, Report};

/// One number of a session.
type Of = fn(&Counters) -> u64;

/// A part of a share: name, help text, and value.
type Part = (&'static str, &'static str, fn(TimeShare) -> f64);

impl Collector for Report {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        self.work(encoder)?;
        self.latencies(encoder)?;
        self.pauses(encoder)?;
        self.utilization(encoder)?;
        self.turns(encoder)?;
        self.memory(encoder)?;
        self.gpus(encoder)?;
        self.totals(encoder)
    }
}

impl Report {
    /// Calls, copies and launches.
    fn work(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        self.counted(
            encoder,
            ("calls", "Calls executed", "kind"),
            &[
                ("posted", |counters| counters.posted),
                ("synchronous", |counters| counters.synchronous),
            ],
        )?;
        let help = "Bytes copied between guests and GPUs";
        self.counted(
            encoder,
            ("copied_bytes", help, "direction"),
            &[
                ("to_device", |counters| counters.bytes_to_device),
                ("from_device", |counters| counters.bytes_from_device),
            ],
        )?;
        self.counted(
            encoder,
            ("launches", "Kernels launched", ""),
            &[("", |counters| counters.launches)],
        )
    }

    /// Downtime and delay of migrations.
    fn pauses(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Downtime of sessions that migrated away";
        self.moves
            .downtime
            .encode(encoder, ("move_downtime_seconds", help))?;
        let help = "Longest delay of a program's call in each of these migrations";
        self.moves
            .delay
            .encode(encoder, ("move_delay_seconds", help))
    }

    /// Sessions and their memory.
    fn memory(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        self.present(encoder, ("sessions", "Sessions now"), |_, sessions| {
            sessions
        })?;
        let help = "Current device memory of sessions";
        self.present(encoder, ("device_memory_bytes", help), |counters, _| {
            counters.device_memory
        })?;
        let help = "Host memory that workers currently hold for guests";
        self.present(encoder, ("host_memory_bytes", help), |counters, _| {
            counters.host_memory
        })?;
        let help = "Pinned and registered guest memory currently kept as shadows";
        self.present(encoder, ("shadow_memory_bytes", help), |counters, _| {
            counters.shadow_memory
        })?;
        let help = "Device memory of a VM, in all its sessions";
        labelled(
            encoder,
            ("vm_device_memory_bytes", help, "vm"),
            self.vms.iter().map(|(vm, memory)| (vm, memory.used)),
        )?;
        let help = "The most that it may have; 0 for no limit";
        labelled(
            encoder,
            ("vm_device_memory_limit_bytes", help, "vm"),
            self.vms.iter().map(|(vm, memory)| (vm, memory.limit)),
        )
    }

    /// GPUs, and their workers without sessions.
    fn gpus(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        labelled(
            encoder,
            ("gpu_memory_bytes", "Memory of a GPU", "gpu"),
            self.gpus.iter().map(|(name, gpu)| (name, gpu.memory)),
        )?;
        labelled(
            encoder,
            ("workers_idle", "Warm workers of a GPU", "gpu"),
            self.gpus.iter().map(|(name, gpu)| (name, gpu.idle)),
        )?;
        labelled(
            encoder,
            ("workers_starting", "Workers that are opening a GPU", "gpu"),
            self.gpus.iter().map(|(name, gpu)| (name, gpu.starting)),
        )
    }

    /// Numbers of the whole daemon.
    fn totals(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let totals = &self.totals;
        for (name, help, value) in [
            ("sessions_begun", "Sessions begun", totals.sessions_begun),
            (
                "guests_refused",
                "Guests that were refused",
                totals.guests_refused,
            ),
            (
                "workers_crashed",
                "Workers that crashed",
                totals.workers_crashed,
            ),
        ] {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        let pending = "Connections that have not sent a hello";
        for (name, help, value) in [
            (
                "guests_waiting",
                "Guests waiting for a worker",
                totals.guests_waiting,
            ),
            ("connections_pending", pending, totals.connections_pending),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(&mut metric, value)?;
        }
        Ok(())
    }

    /// One counter by VM and GPU, and by a label for each of `values` unless `label` is empty.
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

    /// One gauge by VM and GPU, from their counters and their number of sessions.
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
        let labels = |one: &Paced| {
            [
                ("vm", escaped(&one.vm)),
                ("gpu", escaped(&one.gpu)),
                ("session", one.session.to_string()),
            ]
        };
        let help = "GPU time of a session in its turns";
        let mut metric =
            encoder.encode_descriptor("turn_seconds", help, None, MetricType::Counter)?;
        for one in &self.turns {
            metric
                .encode_family(&labels(one))?
                .encode_counter::<NoLabelSet, f64, u64>(&one.turns.seconds, None)?;
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
                |share| share.cap.into(),
            ),
            (
                "turn_priority",
                "Priority of its turns; the highest runs first",
                |share| share.priority.into(),
            ),
        ];
        for (name, help, part) in parts {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for one in &self.turns {
                let labels = labels(one);
                let value = part(one.turns.share);
                metric.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    /// Latencies of calls.
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

impl Durations {
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
