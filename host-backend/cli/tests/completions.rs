//! Completion scripts, what they complete, and manual pages.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

use serde_json::json;

fn paragpu() -> Command {
    Command::new(env!("CARGO_BIN_EXE_paragpu"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Plays the daemon's control socket for this many questions, each on its connection.
fn daemon(directory: &Path, questions: usize) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join("control")).unwrap();
    let session = json!({
        "id": 12, "vm": "blue", "guest_pid": 3, "worker_pid": 4, "device": "cuda:1", "ordinal": 0,
        "communicator": "pci", "age": 1.0, "calls": 0, "posted": 0, "synchronous": 0,
        "launches": 0, "bytes_to_device": 0, "bytes_from_device": 0, "device_memory": 0,
        "host_memory": 0, "shadow_memory": 0, "counted": true, "ending": false,
        "activity": "serving", "checkpoint": null, "turns": null, "job": 7,
    });
    let vm = |name: &str| {
        json!({
            "vm": name, "sessions": 1, "session_limit": 0, "device_memory": 0,
            "device_memory_limit": 0,
        })
    };
    let device = json!({
        "ordinal": 0, "device": "cuda:1", "name": "a GPU", "memory": 0, "uuid": "",
        "compute_capability": "9.0", "cuda_version": "13.0", "idle": 0, "starting": 0,
        "sessions": 1, "problem": null,
    });
    let stats = json!({
        "answer": "stats", "sessions": 1, "session_limit": 4, "waiting": 0, "pending": 0,
        "begun": 1, "refused": 0, "crashed": 0, "uptime": 1.0, "ready": true, "problem": null,
        "devices": [device], "vms": [vm("blue"), vm("uid 1000")],
    });
    std::thread::spawn(move || {
        for _ in 0..questions {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            lines.read_line(&mut question).unwrap();
            let answer = match question.contains("list") {
                true => json!({"answer": "sessions", "sessions": [session]}),
                false => stats.clone(),
            };
            writeln!(stream, "{answer}").unwrap();
        }
    })
}

/// Candidates of fish for the last of `words`, with their descriptions.
fn candidates(directory: &Path, words: &[&str]) -> Vec<(String, String)> {
    let output = paragpu()
        .env("PARAGPU_HOST_CONFIG", "/dev/null")
        .env("PARAGPU_HOST_DAEMON_CONTROL", directory.join("control"))
        .env("_PARAGPU_COMPLETE", "fish")
        .args(["--", "paragpu"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let halves = lines.lines().map(|line| line.split_once('\t'));
    halves
        .flatten()
        .filter(|(value, _)| !value.starts_with('-'))
        .map(|(value, about)| (value.to_owned(), about.to_owned()))
        .collect()
}

#[test]
fn what_the_host_has_is_completed() {
    let directory = tempfile::tempdir().unwrap();
    let of = |words: &[&str]| candidates(directory.path(), words);
    let pair = |value: &str, about: &str| vec![(value.to_owned(), about.to_owned())];
    // No daemon: nothing, and no error.
    assert_eq!(of(&["end", ""]), []);
    let lines = [
        &["end", ""][..],
        &["share", ""],
        &["checkpoint", "1"],
        &["migrate", ""],
    ];
    let server = daemon(directory.path(), lines.len() + 4);
    for words in lines {
        assert_eq!(of(words), pair("12", "blue on cuda:1"), "{words:?}");
    }
    assert_eq!(of(&["end", "2"]), []);
    // bash would take a name with a blank for two words.
    assert_eq!(of(&["migrate", "--vm", ""]), pair("blue", "sessions: 1"));
    assert_eq!(of(&["list", "--job", ""]), pair("7", "blue"));
    assert_eq!(of(&["migrate", "--gpu", ""]), pair("0", "a GPU"));
    server.join().unwrap();
    let commands = of(&[""]);
    assert!(commands.iter().any(|(name, _)| name == "doctor"));
    assert!(!commands.iter().any(|(name, _)| name == "libvirt-hook"));
}

#[test]
fn completions_and_manual_pages_are_made() {
    let directory = tempfile::tempdir().unwrap();
    let paragpu = |arguments: &[&str]| paragpu().args(arguments).output().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&paragpu(&["completions", shell]).stdout);
        let requests = format!("_PARAGPU_COMPLETE={shell}");
        assert!(script.replace('"', "").contains(&requests), "{script}");
    }
    let pages = directory.path().join("man");
    assert!(paragpu(&["man", pages.to_str().unwrap()]).status.success());
    for page in [
        "paragpu.1",
        "paragpu-attach.1",
        "paragpu-detach.1",
        "paragpu-doctor.1",
        "paragpu-config-show.1",
    ] {
        let page = std::fs::read_to_string(pages.join(page)).unwrap_or_else(|_| panic!("{page}"));
        assert!(page.contains(".TH"));
    }
    for page in ["paragpu-help.1", "paragpu-libvirt-hook.1"] {
        assert!(!pages.join(page).exists(), "{page}");
    }
}
