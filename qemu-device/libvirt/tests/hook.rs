//! libvirt's hook, with a stand-in for systemctl.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use paragpu_libvirt::host::{Host, Supervisor};
use paragpu_libvirt::{Error, hook, xml};

const WEB: &str = "505f230a-b86d-4c23-a854-84fd05fb3893";
const OTHER: &str = "00000000-b86d-4c23-a854-84fd05fb3893";

struct Test {
    folder: tempfile::TempDir,
    host: Host,
}

impl Test {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // It works in the current directory.
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/systemctl");
        for name in ["systemctl", "systemd-run"] {
            symlink(program, folder.path().join(name)).unwrap();
        }
        let host = Host {
            sockets: "/run/paragpu-device".into(),
            state: folder.path().join("state"),
            supervisor: Some(Supervisor::Systemd),
            programs: folder.path().display().to_string(),
        };
        Self { folder, host }
    }

    fn hook(&self, name: &str, uuid: &str, operation: &str, sockets: &[&str]) -> Result<(), Error> {
        let devices: String = sockets
            .iter()
            .map(|socket| xml::device(Path::new(socket), None).unwrap())
            .collect();
        let domain = format!(
            "<domain><name>{name}</name><uuid>{uuid}</uuid><devices>{devices}</devices></domain>"
        );
        hook::run(&self.host, name, operation, domain.as_bytes())
    }

    /// The calls of systemctl since the last time.
    fn asked(&self) -> Vec<String> {
        let path = self.folder.path().join("asked");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text.lines().map(str::to_owned).collect()
    }

    fn notes(&self) -> usize {
        fs::read_dir(&self.host.state).map_or(0, Iterator::count)
    }
}

#[test]
fn the_device_process_lives_as_long_as_its_domain() {
    let test = Test::new();
    let socket = "/run/paragpu-device/web-1.sock";
    test.hook("web", WEB, "prepare", &[socket]).unwrap();
    assert_eq!(test.asked(), ["start paragpu-device@web-1.service"]);
    for operation in [
        "start",
        "started",
        "stopped",
        "migrate",
        "reconnect",
        "unheard-of",
    ] {
        test.hook("web", WEB, operation, &[socket]).unwrap();
    }
    assert!(test.asked().is_empty());
    // The device was detached meanwhile: the XML no longer has it.
    test.hook("web", WEB, "release", &[]).unwrap();
    assert_eq!(test.asked()[0], "stop paragpu-device@web-1.service");
    assert_eq!(test.notes(), 0);
}

#[test]
fn a_domain_whose_gpus_went_ahead_arrives() {
    let test = Test::new();
    // As libvirt returns it.
    let mark = xml::gpus_moved("web-1").unwrap().replacen(
        "<ahead",
        &format!("<{0}:ahead xmlns:{0}=\"{1}\"", xml::PREFIX, xml::NAMESPACE),
        1,
    );
    let domain =
        format!("<domain><name>web</name><uuid>{WEB}</uuid><metadata>{mark}</metadata></domain>");
    for operation in ["migrate", "prepare", "start"] {
        hook::run(&test.host, "web", operation, domain.as_bytes()).unwrap();
    }
    assert!(test.asked().is_empty());
    hook::run(&test.host, "web", "started", domain.as_bytes()).unwrap();
    assert_eq!(
        test.asked(),
        [format!(
            "--quiet --collect --property=SyslogIdentifier=paragpu-arrive /usr/bin/paragpu arrive {WEB}"
        )]
    );
}

#[test]
fn domains_without_our_processes_are_left_alone() {
    let test = Test::new();
    let elsewhere = [
        "/run/mine.sock",
        "/run/paragpu-device/../mine.sock",
        "/run/paragpu-device/x",
    ];
    for sockets in [&[][..], &elsewhere[..]] {
        test.hook("web", WEB, "prepare", sockets).unwrap();
        test.hook("web", WEB, "release", sockets).unwrap();
    }
    assert!(test.asked().is_empty());
    assert!(!test.host.state.exists());
}

#[test]
fn two_domains_with_one_socket_are_refused() {
    let test = Test::new();
    let socket = "/run/paragpu-device/web.sock";
    test.hook("web", WEB, "prepare", &[socket]).unwrap();
    let said = test
        .hook("clone", OTHER, "prepare", &[socket])
        .unwrap_err()
        .to_string();
    assert!(said.contains("is the device of the domain web"), "{said}");
    // As libvirt calls it after a failed start.
    test.hook("clone", OTHER, "release", &[socket]).unwrap();
    assert_eq!(test.asked(), ["start paragpu-device@web.service"]);
    assert_eq!(test.notes(), 1);
    // libvirt's daemon was restarted, and then the domain.
    test.hook("web", WEB, "prepare", &[socket]).unwrap();
    test.hook("web", WEB, "release", &[socket]).unwrap();
    test.hook("clone", OTHER, "prepare", &[socket]).unwrap();
}

#[test]
fn a_process_that_does_not_start_leaves_nothing() {
    let test = Test::new();
    let why = "another process serves /run/paragpu-device/web.sock";
    fs::write(test.folder.path().join("refused"), format!("{why}\n")).unwrap();
    let socket = "/run/paragpu-device/web.sock";
    let said = test
        .hook("web", WEB, "prepare", &[socket])
        .unwrap_err()
        .to_string();
    assert_eq!(
        said,
        format!("the device process of web does not start: {why}")
    );
    let asked = test.asked();
    assert!(
        asked.contains(&"stop paragpu-device@web.service".into()),
        "{asked:?}"
    );
    assert!(
        asked.contains(&"reset-failed paragpu-device@web.service".into()),
        "{asked:?}"
    );
    assert_eq!(test.notes(), 0);
    // Without a message of the process, that of systemctl.
    fs::write(test.folder.path().join("refused"), "\n").unwrap();
    let said = test
        .hook("web", WEB, "prepare", &[socket])
        .unwrap_err()
        .to_string();
    assert!(
        said.ends_with("Job for paragpu-device@web.service failed."),
        "{said}"
    );
}

#[test]
fn a_host_with_nobody_to_start_processes_says_so() {
    let mut test = Test::new();
    test.host.supervisor = None;
    let socket = "/run/paragpu-device/web.sock";
    let said = test
        .hook("web", WEB, "prepare", &[socket])
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("neither systemd nor start-stop-daemon"),
        "{said}"
    );
    assert!(!test.host.state.exists());
}

#[test]
fn what_is_no_domain_is_refused() {
    let test = Test::new();
    for xml in ["", "<domain/>", "<domain></oops>"] {
        assert!(
            hook::run(&test.host, "web", "prepare", xml.as_bytes()).is_err(),
            "{xml}"
        );
    }
}
