//! Slurm, through its commands: the resources of a job, the draining nodes, and the request
//! for a lease.
//!
//! A lease is a job with shards (`gres/shard`, one per GiB) that runs the agent. The
//! commands' text is parsed instead of their JSON, whose schema changes between releases.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use crate::{Error, LeaseRequest, Pool};

/// The name of leases' jobs.
const NAME: &str = "paragpu";

/// How long to wait for room on the only host that a claim names.
const NOW: Duration = Duration::from_secs(10);
/// The prefix, in a job's field AdminComment, of the host to which its lease should move.
/// Only operators can write that field, and the user's own comment is kept.
const DESTINATION_PREFIX: &str = "paragpu-to:";

/// The first word of the reason for which the prolog (`examples/prolog.sh`) drains a node.
const PROLOG_REASON: &str = "paragpud:";

/// Bytes of device memory of a shard.
pub const SHARD: u64 = 1 << 30;

/// The resources of a lease's job on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its user.
    pub uid: u32,
    /// Bytes of device memory: its shards.
    pub memory: u64,
    /// Number of the GPU that has them.
    pub gpu: u32,
}

/// Returns the resources that Slurm has granted to job `number` on `node`.
///
/// # Errors
/// [`Error`]: it is not running there, or does not have shards of exactly one GPU.
pub fn job(number: u64, node: &str) -> Result<Job, Error> {
    let number = number.to_string();
    let show = |name: &str| ask("scontrol", &["-o", "-d", "show", "job", name]);
    let text = show(&number)?;
    if text.trim_end().lines().count() > 1 {
        // The number of an array is also that of its last task.
        let wish = ["-h", "-a", "-t", "R", "-j", &number, "-o", "%A %i"];
        if let Some(name) = name_of(&ask("squeue", &wish)?, &number) {
            return read_job(&show(name)?, node);
        }
    }
    read_job(&text, node)
}

/// The name, such as `10_3`, of the job with a number, in lines of both.
fn name_of<'a>(text: &'a str, number: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (own, name) = line.trim().split_once(' ')?;
        (own == number).then_some(name)
    })
}

/// Whether the leases of `node` must leave: Slurm is draining it, but not because the
/// prolog found no paragpud. Its leases are well once that answers again.
pub fn drains(node: &str) -> Result<bool, Error> {
    Ok(must_leave(&ask("scontrol", &["-o", "show", "node", node])?))
}

fn must_leave(text: &str) -> bool {
    let drains = field(text, "State").is_some_and(|state| state.contains("DRAIN"));
    drains && field(text, "Reason") != Some(PROLOG_REASON)
}

/// The numbers of the jobs that run on a node or are suspended there.
pub fn jobs_on(node: &str) -> Result<BTreeSet<u64>, Error> {
    let wish = ["-h", "-a", "-t", "R,S", "-w", node, "-o", "%A"];
    let text = ask("squeue", &wish)?;
    let jobs = text.split_whitespace().map(|job| {
        job.parse()
            .map_err(|_| Error::Engine(format!("squeue printed a job {job:?}")))
    });
    jobs.collect()
}

/// Runs a command of Slurm and returns its output.
fn ask(program: &'static str, arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start { program, source })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::Engine(said.trim().to_owned()))
        }
    }
}

/// The value of `KEY=VALUE` in one of scontrol's lines.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    fields(text).find_map(|(name, value)| (name == key).then_some(value))
}

fn fields(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
}

/// Fields of a job in the order in which scontrol prints them; the parts of its nodes are
/// between the last two. Other fields have text of the user, with blanks, which may imitate
/// these.
const FIELDS: [&str; 4] = ["UserId", "JobState", "JOB_GRES", "MinCPUsNode"];

fn read_job(text: &str, node: &str) -> Result<Job, Error> {
    let unfit = |what: &str| Error::Engine(format!("the job {what}"));
    let all: Vec<_> = fields(text).collect();
    let mut values = [""; FIELDS.len()];
    let mut parts = 0..0;
    for (name, value) in FIELDS.into_iter().zip(&mut values) {
        let mut found = all.iter().enumerate().filter(|(_, (own, _))| *own == name);
        match (found.next(), found.next()) {
            (Some((at, (_, text))), None) if at >= parts.end => {
                *value = text;
                parts = parts.end..at;
            }
            (None, _) => return Err(unfit(&format!("has no {name} in scontrol's answer"))),
            _ => {
                return Err(unfit(&format!(
                    "has more than one {name} in scontrol's answer: its name, comment, command \
                     and directory must not contain `{name}=`"
                )));
            }
        }
    }
    let [user, state, ..] = values;
    if state != "RUNNING" {
        return Err(unfit("is not running"));
    }
    // Such as `root(0)`.
    let uid = user
        .rsplit_once('(')
        .and_then(|(_, uid)| uid.strip_suffix(')')?.parse().ok())
        .ok_or_else(|| unfit("has no user"))?;
    // The part of each node, such as `Nodes=gpua CPU_IDs=0 Mem=10 GRES=shard:20(IDX:1)`.
    let parts = all.get(parts).unwrap_or_default();
    let mut parts = parts.iter().skip_while(|part| **part != ("Nodes", node));
    let here = parts.next().is_some();
    let mut own = parts.take_while(|(name, _)| *name != "Nodes");
    let gres = own.find(|(name, _)| *name == "GRES");
    let (shards, gpu) = gres
        .filter(|_| here)
        .and_then(|(_, gres)| shards(gres))
        .ok_or_else(|| unfit(&format!("has no shards of one GPU on {node}")))?;
    Ok(Job {
        uid,
        memory: shards.saturating_mul(SHARD),
        gpu,
    })
}

/// The number of shards in a text such as `gpu:h200:1(IDX:0),shard:h200:20(IDX:1)`, and
/// their GPU.
fn shards(gres: &str) -> Option<(u64, u32)> {
    let (_, shard) = gres.split_once("shard:")?;
    let (count, rest) = shard.split_once("(IDX:")?;
    let count = count.rsplit(':').next()?.parse().ok()?;
    let (gpu, _) = rest.split_once(')')?;
    Some((count, gpu.parse().ok()?))
}

/// Leases as jobs of Slurm.
#[derive(Debug, Default)]
pub struct Slurm;

/// Bytes of device memory of the shards of this host that the job of this process has;
/// `None` outside of a job with shards.
#[must_use]
pub fn own_memory() -> Option<u64> {
    std::env::var_os("SLURM_JOB_ID")?;
    let shards = std::env::var("SLURM_SHARDS_ON_NODE").ok()?;
    Some(shards.parse::<u64>().ok()?.saturating_mul(SHARD))
}

impl Pool for Slurm {
    fn agent(&self, want: &LeaseRequest, paragpu: &Path) -> Result<Command, Error> {
        let mut srun = if own_memory().is_some() && want.not_on.is_empty() {
            Command::new(paragpu)
        } else {
            let mut srun = Command::new("srun");
            // A lease is a separate job, also if it is requested inside a job.
            for (name, _) in std::env::vars_os() {
                let text = name.to_string_lossy();
                if text.starts_with("SLURM_") && text != "SLURM_CONF" {
                    srun.env_remove(&name);
                }
            }
            let shards = want.memory.div_ceil(SHARD).max(1);
            srun.args(["--quiet", "--unbuffered", "--ntasks=1", "--cpus-per-task=1"])
                .args(["--mem=10", "--kill-on-bad-exit=1"])
                .arg(format!("--job-name={NAME}"))
                .arg(format!("--gres=shard:{shards}"));
            if !want.not_on.is_empty() {
                srun.arg(format!("--exclude={}", want.not_on.join(",")));
            }
            if let Some(host) = &want.on {
                srun.arg(format!("--nodelist={host}"))
                    .arg(format!("--immediate={}", NOW.as_secs()));
            }
            if !want.engine.is_empty() {
                srun.args(&want.engine);
            }
            // The agent must not inherit the environment of the client's node.
            srun.arg("--export=NONE").arg(paragpu);
            srun
        };
        srun.args(["pool", "agent", "--engine", "slurm"]);
        Ok(srun)
    }
}

/// A node that has shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Number of its shards.
    pub shards: u64,
    /// Number of its shards that jobs use.
    pub used: u64,
    /// Whether it accepts jobs.
    pub takes: bool,
}

/// The nodes that have shards, by name.
pub fn nodes() -> Result<BTreeMap<String, Node>, Error> {
    let text = ask("scontrol", &["-o", "show", "node"])?;
    let mut nodes: BTreeMap<String, Node> = text.lines().filter_map(read_node).collect();
    // GresUsed is not used: Slurm 22.05 counts shards in use incorrectly there.
    for job in jobs()? {
        if let Some(node) = nodes.get_mut(&job.node) {
            node.used = node.used.saturating_add(job.shards);
        }
    }
    Ok(nodes)
}

/// The settings of slurm.conf that keep Slurm from granting shards, each with the value
/// that it should have.
pub fn unfit_settings() -> Result<Vec<(String, &'static str)>, Error> {
    Ok(unfit(&ask("scontrol", &["show", "config"])?))
}

/// The scripts that Slurm runs on each node: their settings, which are `Prolog`, `Epilog`
/// and `HealthCheckProgram`, and paths.
///
/// # Errors
/// As [`nodes`].
pub fn scripts() -> Result<Vec<(&'static str, PathBuf)>, Error> {
    Ok(scripts_of(&ask("scontrol", &["show", "config"])?))
}

fn scripts_of(config: &str) -> Vec<(&'static str, PathBuf)> {
    let of = |key| values(config, key).into_iter().map(move |path| (key, path));
    let all = ["Prolog", "Epilog", "HealthCheckProgram"]
        .into_iter()
        .flat_map(of);
    // A line may name several scripts or a pattern. Those are skipped.
    all.filter(|(_, path)| path.starts_with('/') && !path.contains(['*', '?', '[', ',']))
        .map(|(key, path)| (key, path.into()))
        .collect()
}

/// The values of a setting. Newer releases number settings that may have several values.
fn values(config: &str, key: &str) -> Vec<String> {
    let lines = config.lines().filter_map(|line| line.split_once('='));
    let own = |name: &str| name.split('[').next().unwrap_or_default().trim() == key;
    lines
        .filter(|(name, _)| own(name))
        .map(|(_, value)| value.trim().to_owned())
        .collect()
}

fn unfit(config: &str) -> Vec<(String, &'static str)> {
    let value = |key: &str| values(config, key).into_iter().next().unwrap_or_default();
    let mut unfit = Vec::new();
    let select = value("SelectType");
    if select != "select/cons_tres" {
        unfit.push((
            format!("SelectType={select}"),
            "SelectType=select/cons_tres",
        ));
    }
    let types = value("GresTypes");
    if !["gpu", "shard"]
        .iter()
        .all(|kind| types.split(',').any(|other| other == *kind))
    {
        unfit.push((format!("GresTypes={types}"), "GresTypes=gpu,shard"));
    }
    unfit
}

fn read_node(line: &str) -> Option<(String, Node)> {
    let name = field(line, "NodeName")?.to_owned();
    let shards = count(field(line, "Gres")?)?;
    let state = field(line, "State")?;
    let takes = ["DRAIN", "DOWN", "FAIL", "MAINT", "*"]
        .iter()
        .all(|bad| !state.contains(bad));
    let node = Node {
        shards,
        used: 0,
        takes,
    };
    Some((name, node))
}

/// The number of shards in a text such as `gpu:h200:2(S:0),shard:h200:282(S:0)`.
fn count(gres: &str) -> Option<u64> {
    let (_, shard) = gres.split_once("shard:")?;
    let end = shard.find(['(', ',']).unwrap_or(shard.len());
    shard.get(..end)?.rsplit(':').next()?.parse().ok()
}

/// A job that has shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Running {
    /// Its number.
    pub job: u64,
    /// Its node.
    pub node: String,
    /// Number of its shards.
    pub shards: u64,
    /// Whether it is a lease.
    pub lease: bool,
    /// Its user.
    pub user: String,
    /// How long it has run, in Slurm's format days-hours:minutes:seconds.
    pub since: String,
}

/// The running jobs that have shards.
pub fn jobs() -> Result<Vec<Running>, Error> {
    let wish = ["-h", "-t", "R", "-o", "%i %N %b %u %M %j"];
    Ok(ask("squeue", &wish)?.lines().filter_map(running).collect())
}

fn running(line: &str) -> Option<Running> {
    let mut words = line.split_whitespace();
    let job = words.next()?.parse().ok()?;
    let node = words.next()?.to_owned();
    let (_, shards) = words.next()?.split_once("shard:")?;
    let shards = shards.rsplit(':').next()?.parse().ok()?;
    let user = words.next()?.to_owned();
    let since = words.next()?.to_owned();
    Some(Running {
        job,
        node,
        shards,
        lease: words.next() == Some(NAME),
        user,
        since,
    })
}

/// Ends a job whose srun is gone. A job that srun started does not end with its step.
pub fn end(job: u64) -> Result<(), Error> {
    ask("scancel", &["--quiet", &job.to_string()]).map(drop)
}

/// Where rebalancing sends a lease, written `NODE/MILLISECONDS` or `NODE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The node.
    pub node: String,
    /// The lease stays if its programs would pause for longer than this many milliseconds.
    pub most_pause_ms: Option<u64>,
}

impl Destination {
    fn parse(text: &str) -> Option<Self> {
        let (node, most) = match text.split_once('/') {
            Some((node, most)) => (node, Some(most.parse().ok()?)),
            None => (text, None),
        };
        is_node(node).then(|| Self {
            node: node.to_owned(),
            most_pause_ms: most,
        })
    }
}

/// Asks the holder of a lease to move it to `node`, with a field of its job and a signal to
/// its agent.
pub fn ask_to_leave(job: u64, node: &str, most_pause_ms: u64) -> Result<(), Error> {
    let job = job.to_string();
    let update = format!("JobId={job}");
    let comment = format!("AdminComment={DESTINATION_PREFIX}{node}/{most_pause_ms}");
    ask("scontrol", &["update", &update, &comment])?;
    ask("scancel", &["-s", "USR1", &job]).map(drop)
}

/// Where the lease of a job should move; `None` if no node is named.
#[must_use]
pub fn destination(job: u64) -> Option<Destination> {
    destination_of(&ask("scontrol", &["-o", "show", "job", &job.to_string()]).ok()?)
}

fn destination_of(text: &str) -> Option<Destination> {
    Destination::parse(field(text, "AdminComment")?.strip_prefix(DESTINATION_PREFIX)?)
}

/// Whether it is the name of one node, not a Slurm list.
pub(crate) fn is_node(name: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !name.is_empty() && name.len() <= 255 && !name.starts_with('-') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "JobId=1 JobName=paragpu UserId=alice(1000) GroupId=a(1000) \
        JobState=RUNNING NodeList=gpua NumNodes=1 JOB_GRES=shard:20   Nodes=gpua CPU_IDs=31 \
        Mem=10 GRES=shard:20(IDX:1) MinCPUsNode=1 TresPerNode=gres:shard:20";

    #[test]
    fn scripts_are_found_as_each_release_lists_them() {
        let of = |config: &str| -> Vec<(&'static str, String)> {
            let text = |(key, path): (_, PathBuf)| (key, path.to_string_lossy().into_owned());
            scripts_of(config).into_iter().map(text).collect()
        };
        let old = "Epilog                  = (null)\nEpilogMsgTime = 2000 usec\nEpilogSlurmctld = /x\n\
                   Prolog                  = /etc/slurm/prolog.sh\nPrologFlags = (null)\n";
        assert_eq!(of(old), [("Prolog", "/etc/slurm/prolog.sh".to_owned())]);
        let new = "Epilog[0] = /a/epilog.sh\nProlog[0] = /a/1.sh\nProlog[1] = /a/2.sh\n";
        let all = [
            ("Prolog", "/a/1.sh"),
            ("Prolog", "/a/2.sh"),
            ("Epilog", "/a/epilog.sh"),
        ];
        assert_eq!(of(new), all.map(|(key, path)| (key, path.to_owned())));
        let health =
            "HealthCheckInterval     = 60 sec\nHealthCheckProgram      = /etc/slurm/health.sh\n";
        let found = ("HealthCheckProgram", "/etc/slurm/health.sh".to_owned());
        assert_eq!(of(health), [found]);
        assert!(of("Prolog = /etc/slurm/prolog.d/*\nEpilog =\n").is_empty());
    }

    #[test]
    fn a_node_that_the_prolog_drained_keeps_its_leases() {
        let node = |state: &str, reason: &str| {
            must_leave(&format!("NodeName=a State={state} OS=Linux {reason}"))
        };
        assert!(node(
            "MIXED+DRAIN",
            "Reason=repair [root@2026-11-26T09:42:35]"
        ));
        assert!(node("IDLE+DRAIN", ""));
        assert!(!node(
            "MIXED+DRAIN",
            "Reason=paragpud: no paragpud answers [root@2026]"
        ));
        assert!(!node("MIXED", "Reason=repair [root@2026]"));
    }

    #[test]
    fn a_job_has_its_shards_on_its_node_alone() {
        let read = read_job(JOB, "gpua").unwrap();
        let expected = Job {
            uid: 1000,
            memory: 20 << 30,
            gpu: 1,
        };
        assert_eq!(read, expected);
        assert!(read_job(JOB, "gpub").is_err());
        assert!(read_job(&JOB.replace("RUNNING", "COMPLETED"), "gpua").is_err());
        assert!(read_job(&JOB.replace("IDX:1", "IDX:0-1"), "gpua").is_err());
        assert!(read_job(&JOB.replace("shard:20(", "gpu:1("), "gpua").is_err());
        assert!(read_job("", "gpua").is_err());
        // The next node's shards are not this one's.
        let two = JOB.replace(" GRES=shard:20(IDX:1)", " GRES=").replace(
            " MinCPUs",
            "   Nodes=gpub Mem=10 GRES=shard:9(IDX:0) MinCPUs",
        );
        assert!(read_job(&two, "gpua").is_err());
        assert_eq!(read_job(&two, "gpub").unwrap().memory, 9 << 30);
    }

    #[test]
    fn a_jobs_text_does_not_pass_for_its_fields() {
        let parts = "Nodes=gpub GRES=shard:99(IDX:0)";
        let all = format!("UserId=b(7) JobState=RUNNING JOB_GRES=x {parts} MinCPUsNode=1");
        let own = JOB.replace("RUNNING", "COMPLETED");
        let cases: [(&str, &str); 6] = [
            (JOB, "UserId=root(0)"),
            (&own, "JobState=RUNNING"),
            (JOB, &format!("JOB_GRES=x {parts}")),
            (JOB, &format!("{parts} MinCPUsNode=1")),
            (JOB, &all),
            (JOB, &format!("\nJobId=1 JobName=y {all}\nJobId=2")),
        ];
        for (job, forged) in cases {
            let name = job.replace("paragpu", &format!("x {forged}"));
            for text in [name, format!("{job} Comment=x {forged} WorkDir=/")] {
                let error = read_job(&text, "gpub").unwrap_err().to_string();
                assert!(error.contains("more than one"), "{forged}: {error}");
            }
        }
        // Elsewhere, parts of nodes count for nothing.
        let name = JOB.replace("paragpu", &format!("x {parts}"));
        for text in [name, format!("{JOB} Comment={parts}")] {
            assert!(read_job(&text, "gpub").is_err());
            assert_eq!(read_job(&text, "gpua").unwrap().memory, 20 << 30);
        }
        // Fields that are missing are not made up for, either.
        let without = JOB.replace("JOB_GRES=shard:20", "");
        let forged = without.replace("paragpu", "JOB_GRES=x");
        for text in [&without, &forged, &forged.replace("JobName=", "")] {
            assert!(read_job(text, "gpua").is_err(), "{text}");
        }
    }

    #[test]
    fn a_task_of_an_array_is_found_by_its_number() {
        let lines = "11 10_1\n10 10_3\n";
        assert_eq!(name_of(lines, "10"), Some("10_3"));
        assert_eq!(name_of(lines, "1"), None);
    }

    #[test]
    fn a_destination_is_one_node() {
        let read = |comment: &str| destination_of(&format!("JobId=1 AdminComment={comment} X=y"));
        let to = |node: &str, most_pause_ms| {
            Some(Destination {
                node: node.into(),
                most_pause_ms,
            })
        };
        assert_eq!(read("paragpu-to:gpu-2.example"), to("gpu-2.example", None));
        assert_eq!(read("paragpu-to:gpu2/500"), to("gpu2", Some(500)));
        for other in [
            "gpu2",
            "paragpu-to:",
            "paragpu-to:gpu[1-9]",
            "paragpu-to:a,b",
            "paragpu-to:-a",
            "paragpu-to:a/soon",
            "paragpu-to:/500",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(destination_of("JobId=1"), None);
    }

    #[test]
    fn a_lease_is_asked_for_on_one_host_or_off_another() {
        let asked = |want: LeaseRequest| {
            let command = Slurm.agent(&want, Path::new("/bin/paragpu")).unwrap();
            let words = command
                .get_args()
                .map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>()
        };
        let to = asked(LeaseRequest {
            on: Some("b".into()),
            not_on: vec!["a".into()],
            ..LeaseRequest::default()
        });
        for word in ["--nodelist=b", "--immediate=10", "--exclude=a"] {
            assert!(to.iter().any(|it| it == word), "{word}: {to:?}");
        }
        let away = asked(LeaseRequest {
            not_on: vec!["a".into()],
            ..LeaseRequest::default()
        });
        assert!(
            !away
                .iter()
                .any(|it| it.starts_with("--nodelist") || it.starts_with("--imm"))
        );
    }

    #[test]
    fn settings_without_shards_are_found() {
        let config = "Configuration data as of 2026\nGresTypes               = gpu,shard\n\
                      SelectType              = select/cons_tres\nSelectTypeParameters = CR_CORE\n";
        assert_eq!(unfit(config), []);
        let other = config.replace("cons_tres", "linear").replace(",shard", "");
        let expected = [
            (
                "SelectType=select/linear".to_owned(),
                "SelectType=select/cons_tres",
            ),
            ("GresTypes=gpu".to_owned(), "GresTypes=gpu,shard"),
        ];
        assert_eq!(unfit(&other), expected);
    }

    #[test]
    fn nodes_and_leases_are_read() {
        let line = "NodeName=gpua Arch=x86_64 Gres=gpu:h200:2,shard:h200:282 \
            State=MIXED+DRAIN ";
        let node = Node {
            shards: 282,
            used: 0,
            takes: false,
        };
        assert_eq!(read_node(line), Some(("gpua".into(), node)));
        assert_eq!(read_node("NodeName=ctl Gres=(null) State=IDLE"), None);
        let lease = Running {
            job: 7,
            node: "gpub".into(),
            shards: 3,
            lease: true,
            user: "alice".into(),
            since: "2:01".into(),
        };
        assert_eq!(
            running("7 gpub gres:shard:3 alice 2:01 paragpu"),
            Some(lease)
        );
        assert_eq!(running("8 gpub gres:gpu:1 alice 2:01 train"), None);
        assert!(running("8 gpub gres:shard:h200:2 alice 2:01 train").is_some_and(|it| !it.lease));
    }
}
