//! `paragpu top --pool`: what the engine says of a pool's hosts and leases.

use paragpu_pool::slurm::{self, Node, Running};
use serde::Serialize;

use super::listing::{Column, Listing, Side};
use crate::arguments::{Output, Top};
use crate::error::{Error, print, print_json_line};

use Side::{Left, Right};

const HOSTS: &[Column] = &[
    ("HOST", Left, 0),
    ("STATE", Left, 0),
    ("LEASES", Right, 0),
    ("GIB", Right, 0),
    ("LEASED", Right, 0),
    ("FREE", Right, 0),
];
const LEASES: &[Column] = &[
    ("JOB", Right, 0),
    ("HOST", Left, 0),
    ("USER", Left, 0),
    ("GIB", Right, 0),
    ("SINCE", Right, 0),
];

/// A pool at one moment.
#[derive(Debug, Serialize)]
struct View {
    hosts: Vec<Host>,
    leases: Vec<Running>,
}

#[derive(Debug, Serialize)]
struct Host {
    host: String,
    /// It takes leases: it neither drains nor is down.
    takes: bool,
    leases: usize,
    /// GiB that it gives.
    shards: u64,
    /// GiB of leases, and of other jobs with shards.
    used: u64,
}

impl View {
    fn new(nodes: impl IntoIterator<Item = (String, Node)>, mut jobs: Vec<Running>) -> Self {
        jobs.retain(|job| job.lease);
        jobs.sort_by(|a, b| b.shards.cmp(&a.shards).then(a.job.cmp(&b.job)));
        let host = |(host, node): (String, Node)| Host {
            leases: jobs.iter().filter(|job| job.node == host).count(),
            host,
            takes: node.takes,
            shards: node.shards,
            used: node.used,
        };
        Self {
            hosts: nodes.into_iter().map(host).collect(),
            leases: jobs,
        }
    }

    fn text(&self) -> String {
        let host = |host: &Host| {
            vec![
                host.host.clone(),
                if host.takes { "up" } else { "takes none" }.into(),
                host.leases.to_string(),
                host.shards.to_string(),
                host.used.to_string(),
                host.shards.saturating_sub(host.used).to_string(),
            ]
        };
        let lease = |lease: &Running| {
            vec![
                lease.job.to_string(),
                lease.node.clone(),
                lease.user.clone(),
                lease.shards.to_string(),
                lease.since.clone(),
            ]
        };
        let hosts = Listing {
            columns: HOSTS,
            rows: self.hosts.iter().map(host).collect(),
        };
        let leases = Listing {
            columns: LEASES,
            rows: self.leases.iter().map(lease).collect(),
        };
        match self.leases.is_empty() {
            true => hosts.text(),
            false => format!("{}\n{}", hosts.text(), leases.text()),
        }
    }
}

/// Prints the pool again and again, or once.
pub fn top(options: &Top) -> Result<(), Error> {
    loop {
        let view = View::new(slurm::nodes()?, slurm::jobs()?);
        match options.output {
            Output::Json => print_json_line(&view)?,
            Output::Text => print(view.text() + if options.once { "" } else { "\n" })?,
        }
        if options.once {
            return Ok(());
        }
        std::thread::sleep(options.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_leases_are_listed() {
        let node = |used, takes| Node {
            shards: 282,
            used,
            takes,
        };
        let job = |job, node: &str, shards, lease| Running {
            job,
            node: node.into(),
            shards,
            lease,
            user: "alice".into(),
            since: "1-02:03:04".into(),
        };
        let nodes = [
            ("gpu1".into(), node(23, true)),
            ("gpu2".into(), node(0, false)),
        ];
        let jobs = vec![
            job(7, "gpu1", 3, true),
            job(8, "gpu1", 20, true),
            job(9, "gpu1", 4, false),
        ];
        let text = View::new(nodes, jobs).text();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["gpu1", "up", "2", "282", "23", "259"]);
        assert_eq!(lines[2], ["gpu2", "takes", "none", "0", "282", "0", "282"]);
        assert_eq!(lines[5], ["8", "gpu1", "alice", "20", "1-02:03:04"]);
        assert_eq!(lines[6], ["7", "gpu1", "alice", "3", "1-02:03:04"]);
        assert_eq!(lines.len(), 7);
    }
}
