//! Order of the sources, and what is said about mistakes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use paragpu_config::guest::Guest;
use paragpu_config::host::Host;
use paragpu_config::{
    Address, Communicator, Configuration, Error, Key, Level, Origin, Size, Sources, Spin,
};

struct Places {
    directory: tempfile::TempDir,
}

impl Places {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("conf.d")).unwrap();
        Self { directory }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
    fn write(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.path(name), text).unwrap();
        self
    }
    fn sources(&self, environment: &[(&str, &str)]) -> Sources {
        Sources {
            file: Some(self.path("main.toml")),
            required: false,
            fragments: Some(self.path("conf.d")),
            environment: environment
                .iter()
                .map(|(name, value)| (OsString::from(name), OsString::from(value)))
                .collect(),
            arguments: Vec::new(),
        }
    }
    fn guest(&self, environment: &[(&str, &str)]) -> Result<Guest, Error> {
        self.sources(environment).load().map(|loaded| loaded.values)
    }
}

fn message<T: Configuration>(text: &str) -> String {
    let places = Places::new();
    places.write("main.toml", text);
    let error = Sources::only(places.path("main.toml")).load::<T>();
    error
        .err()
        .unwrap_or_else(|| panic!("accepted: {text}"))
        .to_string()
        .replace(&format!("{}/", places.directory.path().display()), "")
}

#[test]
fn the_environment_names_the_file_only_where_it_is_a_source() {
    let variable = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
    let variables = [
        variable("PARAGPU_CONFIG", "/home/user/guest.toml"),
        variable("PARAGPU_STATS_FILE", "/home/user/stats"),
        variable("HOME", "/home/user"),
    ];
    let sources = Sources::with_environment::<Guest>(variables.clone().into_iter());
    assert_eq!(
        sources.file.as_deref(),
        Some(Path::new("/home/user/guest.toml"))
    );
    assert!(sources.required && sources.fragments.is_none());
    assert_eq!(sources.environment, variables[..2]);
    // As for a program with more rights than its user.
    let sources = Sources::with_environment::<Guest>(std::iter::empty());
    assert_eq!(sources.file.as_deref(), Some(Path::new(Guest::FILE)));
    assert!(!sources.required && sources.environment.is_empty());
    assert_eq!(
        sources.fragments.as_deref(),
        Some(Path::new(Guest::FRAGMENTS))
    );
    // Tests have no more rights than their user.
    assert!(!paragpu_config::is_privileged());
}

#[test]
fn nothing_configured_is_the_defaults() {
    let nowhere = Sources {
        file: Some(Path::new("/nonexistent/guest.toml").into()),
        fragments: Some(Path::new("/nonexistent/conf.d").into()),
        ..Sources::default()
    };
    let loaded = nowhere.load::<Guest>().unwrap();
    assert_eq!(loaded.values, Guest::default());
    assert!(loaded.files.is_empty());
}

#[test]
fn later_sources_win() {
    let places = Places::new();
    places.write(
        "main.toml",
        "spin = 1\n[log]\nlevel = 'error'\n[shm]\nsocket = '/a'\n",
    );
    places.write("conf.d/20-b.toml", "spin = 3\n");
    places.write("conf.d/10-a.toml", "spin = 2\n[shm]\nsocket = '/b'");
    places.write("conf.d/.hidden.toml", "spin = 99");
    places.write("conf.d/readme.txt", "not TOML");
    let guest = places.guest(&[]).unwrap();
    assert_eq!(guest.spin, Spin::Microseconds(3));
    assert_eq!(guest.shm.socket, PathBuf::from("/b"));
    assert_eq!(guest.log.level, Level::Error);

    let mut sources = places.sources(&[("PARAGPU_SPIN", "auto"), ("PARAGPU_SHM_SOCKET", "/c")]);
    sources.arguments = vec![("shm.socket".into(), "/d".into())];
    let loaded = sources.load::<Guest>().unwrap();
    assert_eq!(loaded.values.spin, Spin::Auto);
    assert_eq!(loaded.values.shm.socket, PathBuf::from("/d"));
    assert_eq!(loaded.origin("shm.socket"), &Origin::CommandLine);
    assert_eq!(
        loaded.origin("spin"),
        &Origin::Environment("PARAGPU_SPIN".into())
    );
    assert_eq!(
        loaded.origin("log.level"),
        &Origin::File {
            path: places.path("main.toml"),
            line: 3
        }
    );
    assert_eq!(loaded.origin("tcp.address"), &Origin::Default);
    assert_eq!(
        loaded.files,
        [
            places.path("main.toml"),
            places.path("conf.d/10-a.toml"),
            places.path("conf.d/20-b.toml")
        ]
    );
}

#[test]
fn a_required_file_must_exist() {
    let error = Sources::only("/nonexistent/guest.toml")
        .load::<Guest>()
        .unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nonexistent/guest.toml");
}

#[test]
fn unknown_names_come_with_the_nearest() {
    for (text, expected) in [
        (
            "\n[shm]\nsokcet = '/a'\n",
            "main.toml:3: there is no key `shm.sokcet`; did you mean `shm.socket`?",
        ),
        (
            "comunicator = 'pci'\n",
            "main.toml:1: there is no key `comunicator`; did you mean `communicator`?",
        ),
        (
            "address = 'a:1'\n",
            "main.toml:1: there is no key `address`; did you mean `tcp.address`?",
        ),
        (
            "[smh]\nsocket = '/a'\n",
            "main.toml:1: there is no section `smh`; did you mean `shm`?",
        ),
        (
            "[tcp]\n\nquantum = 1\n",
            "main.toml:3: there is no key `tcp.quantum`",
        ),
        (
            "[pool]\nwarm = 1\n",
            "main.toml:1: there is no section `pool` here; it belongs in the host's \
             /etc/paragpu/host.toml or /etc/paragpu/host.d",
        ),
        (
            "[tcp]\nlisten = '127.0.0.1:1'\n",
            "main.toml:2: there is no key `tcp.listen` here; it belongs in the host's \
             /etc/paragpu/host.toml or /etc/paragpu/host.d",
        ),
    ] {
        assert_eq!(message::<Guest>(text), expected);
    }
}

#[test]
fn wrong_values_are_named_with_their_line() {
    for (text, expected) in [
        (
            "[log]\nlevel = 3\n",
            "main.toml:2: `log.level` expects a string",
        ),
        (
            "communicator = 'shmm'",
            "main.toml:1: `communicator` expects one of auto, shm, unix, tcp, pci, vsock, not \"shmm\"; \
             did you mean \"shm\"?",
        ),
        (
            "spin = 2000000",
            "main.toml:1: `spin` expects a value from 0 to 1000000, not 2000000",
        ),
        (
            "spin = true",
            "main.toml:1: `spin` expects a number or a text",
        ),
        (
            "[shm]\nsocket = 'run/x'",
            "main.toml:2: `shm.socket` expects a path that starts with /, not \"run/x\"",
        ),
        ("shm = 'x'", "main.toml:1: `shm` is a section: write [shm]"),
        (
            "[tcp]\naddress = 'host'",
            "main.toml:2: `tcp.address` expects \"host:port\", not \"host\"",
        ),
        (
            "[tcp]\naddress = 'tcp://host:1'",
            "main.toml:2: `tcp.address` expects \"host:port\", not \"tcp://host:1\"",
        ),
        (
            "communicator = tcp",
            "main.toml:1: invalid boolean, expected `true`; any other word stands in quotes",
        ),
        (
            "communicator = 'tcp'",
            "main.toml:1: `communicator` is \"tcp\", but tcp.address names no \"host:port\"",
        ),
    ] {
        assert_eq!(message::<Guest>(text), expected);
    }
    for (text, expected) in [
        (
            "[limits]\n\nsessions = -1",
            "main.toml:3: `limits.sessions` expects a whole number from 0 to 4294967295, not \
             integer `-1`",
        ),
        (
            "[limits]\npending = 0",
            "main.toml:2: `limits.pending` expects a value from 1 to 4096, not 0",
        ),
        (
            "[software]\nthreads = 100000",
            "main.toml:2: `software.threads` expects a value from 0 to 1024, not 100000",
        ),
        (
            "[pool]\nwarm = 65",
            "main.toml:2: `pool.warm` expects a value from 0 to 64, not 65",
        ),
        (
            "[shm]\nwindow = '1KiB'",
            "main.toml:2: `shm.window` expects a value from 8MiB to 1TiB, not \"1KiB\"",
        ),
        (
            "[limits]\nmemory = '99999999TiB'",
            "main.toml:2: `limits.memory` expects a size in bytes, KiB, MiB, GiB or TiB, not \
             \"99999999TiB\"",
        ),
        (
            "[device]\nindices = ['0']",
            "main.toml:2: `device.indices` expects a whole number from 0 to 4294967295, not \
             string \"0\"",
        ),
        (
            "[software]\ncompute_capability = 8.6",
            "main.toml:2: `software.compute_capability` expects a string, not floating point `8.6`",
        ),
    ] {
        assert_eq!(message::<Host>(text), expected);
    }
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_line() {
    let message = message::<Guest>("spin = 1\n[shm\n");
    assert!(message.starts_with("main.toml:2: "), "{message}");
}

#[test]
fn remote_addresses_need_permission() {
    let refused = message::<Host>("[tcp]\nlisten = '0.0.0.0:7474'\n");
    assert!(
        refused.starts_with("main.toml:2: `tcp.listen` is 0.0.0.0:7474, which other machines"),
        "{refused}"
    );
    let places = Places::new();
    places.write(
        "main.toml",
        "[tcp]\nlisten = '0.0.0.0:7474'\nallow_remote = true\n",
    );
    let host = Sources::only(places.path("main.toml"))
        .load::<Host>()
        .unwrap();
    assert!(host.values.tcp.listen.0.is_some());
}

#[test]
fn vsock_sockets_name_their_vms() {
    let places = Places::new();
    let unix = "['/run/a/alpha.vsock_7014', 'beta=/run/b/v.sock_7014', '/run/c/v_x']";
    places.write("main.toml", &format!("[vsock]\nunix = {unix}\n"));
    let host = Sources::only(places.path("main.toml"))
        .load::<Host>()
        .unwrap()
        .values;
    let names: Vec<&str> = host.vsock.unix.0.iter().map(|one| &*one.vm).collect();
    assert_eq!(names, ["alpha", "beta", "v_x"]);
    let written = toml::Value::try_from(&host.vsock.unix).unwrap();
    assert_eq!(written.to_string().replace('"', "'"), unix);

    for (unix, expected) in [
        (
            "['/a/v.sock_7014', '/b/v.sock_7014']",
            "names two VMs \"v\", with the sockets /a/v.sock_7014 and /b/v.sock_7014: write \
             VM=PATH with a name of its own for each",
        ),
        (
            "['a=/v.sock_7014', 'b=/v.sock_7014']",
            "names the socket /v.sock_7014 twice",
        ),
        (
            "['v.sock_7014']",
            "expects a path that starts with /, or VM=PATH, not \"v.sock_7014\"",
        ),
        (
            "['=/v.sock_7014']",
            "expects a path that starts with /, or VM=PATH, not \"=/v.sock_7014\"",
        ),
        ("7014", "expects a sequence, not integer `7014`"),
    ] {
        assert_eq!(
            message::<Host>(&format!("[vsock]\nunix = {unix}\n")),
            format!("main.toml:2: `vsock.unix` {expected}")
        );
    }
}

#[test]
fn vms_have_tables_of_their_own() {
    let places = Places::new();
    places.write(
        "main.toml",
        "[limits]\nper_vm_memory = '4GiB'\nper_vm = 9\n[vm.red]\nmemory = '1GiB'\ncid = 5\n\n\
         [vm.'uid 1000']\nsessions = 2\n",
    );
    places.write(
        "conf.d/10.toml",
        "[vm.red]\nsessions = 3\nmemory = '2GiB'\n",
    );
    let mut sources = places.sources(&[]);
    sources.arguments = vec![
        ("vm.10.0.0.1.memory".into(), "64MiB".into()),
        ("vm.\"10.0.0.2\".sessions".into(), "7".into()),
    ];
    let loaded = sources.load::<Host>().unwrap();
    let host = &loaded.values;
    for (vm, memory, sessions) in [
        ("10.0.0.2", 4 << 30, 7),
        ("red", 2 << 30, 3),
        ("uid 1000", 4 << 30, 2),
        ("10.0.0.1", 64 << 20, 9),
        ("another", 4 << 30, 9),
    ] {
        assert_eq!(
            (host.memory_of(vm), host.sessions_of(vm)),
            (memory, sessions),
            "{vm}"
        );
    }
    assert_eq!(
        (host.vm_of_cid(5), host.vm_of_cid(6), host.vm_of_cid(0)),
        (Some("red"), None, None)
    );
    let named: Vec<(String, String, String)> = loaded
        .entries()
        .into_iter()
        .filter(|entry| entry.variable.is_none())
        .map(|entry| (entry.key, entry.value.to_string(), entry.origin.to_string()))
        .collect();
    let at = |name: &str, line: u32| format!("{}:{line}", places.path(name).display());
    assert_eq!(
        named,
        [
            (
                "vm.10.0.0.1.memory".into(),
                "\"64MiB\"".into(),
                "command line".into()
            ),
            (
                "vm.10.0.0.2.sessions".into(),
                "7".into(),
                "command line".into()
            ),
            ("vm.red.cid".into(), "5".into(), at("main.toml", 6)),
            (
                "vm.red.memory".into(),
                "\"2GiB\"".into(),
                at("conf.d/10.toml", 3)
            ),
            (
                "vm.red.sessions".into(),
                "3".into(),
                at("conf.d/10.toml", 2)
            ),
            (
                "vm.uid 1000.sessions".into(),
                "2".into(),
                at("main.toml", 9)
            ),
        ]
    );
}

#[test]
fn mistakes_about_vms_are_one_sentence() {
    for (text, expected) in [
        (
            "[vm.red]\n\nmemroy = 1\n",
            "main.toml:3: there is no key `vm.red.memroy`; did you mean `vm.red.memory`?",
        ),
        (
            "vm = 3\n",
            "main.toml:1: `vm` is a section: write [vm.NAME]",
        ),
        (
            "[vm]\nmemory = 3\n",
            "main.toml:2: `vm.memory` is a section: write [vm.NAME]",
        ),
        (
            "[vms.red]\nmemory = 3\n",
            "main.toml:1: there is no section `vms`; did you mean `vm`?",
        ),
        (
            "[vm.red]\nsessions = 5000\n",
            "main.toml:2: `vm.red.sessions` expects a value from 0 to 4096, not 5000",
        ),
        (
            "[vm.red]\ncid = 4\n[vm.blue]\ncid = 4\n",
            "main.toml:2: `vm.red.cid` is 4, which vm.blue.cid is already: give each VM a context \
             identifier of its own",
        ),
        (
            "[vm.red]\ncid = 2\n",
            "main.toml:2: `vm.red.cid` is 2, which is the host's: VMs have 3 and more",
        ),
        (
            "[vm.\"uid 7\"]\nsessions = 1\n[vm.\"uid root\"]\nsessions = 1\n",
            "main.toml:4: `vm.uid root` names no VM: only users (\"uid 1000\") and CIDs \
             (\"cid 5\") have a blank",
        ),
        (
            "[device]\nindices = [0, 1]\n[vm.red]\ndevices = [1, 3]\n",
            "main.toml:4: `vm.red.devices` has device 3, which device.indices does not give to \
             guests",
        ),
        (
            "[daemon]\nsocket = '/a'\ncontrol = '/a'\n",
            "main.toml:3: `daemon.control` is a socket of daemon.socket, too: give each a path of its \
             own",
        ),
        (
            "[daemon]\nsocket = '/run/a.sock'\n[metrics]\nlisten = '/run/a.devices'\n",
            "main.toml:4: `metrics.listen` is a socket of daemon.socket, too: give each a path of its \
             own",
        ),
        (
            &format!("[daemon]\ncontrol = '/{}'\n", "x".repeat(107)),
            "main.toml:2: `daemon.control` is a path of 108 bytes, and that of a socket has at most \
             107: choose a shorter one",
        ),
        (
            // Beside it lies the socket for device processes.
            &format!("[daemon]\nsocket = '/{}.sock'\n", "x".repeat(101)),
            "main.toml:2: `daemon.socket` is a path of 110 bytes, and that of a socket has at most \
             107: choose a shorter one",
        ),
        (
            "[device]\nindices = [0, 2, 0]\n",
            "main.toml:2: `device.indices` has device 0 twice",
        ),
        (
            "[vm.red]\ndevices = [1, 1]\n",
            "main.toml:2: `vm.red.devices` has device 1 twice",
        ),
        (
            "[vm.\"\"]\ncid = 4\n",
            "main.toml:2: `vm` has a section with an empty name",
        ),
        (
            "[vm.\"a\\nb\"]\ncid = 4\n",
            "main.toml:2: `vm` has a section whose name is longer than 64 bytes or cannot be \
             printed: \"a\\nb\"",
        ),
        (
            "[device]\nplacement = 'least'\n",
            "main.toml:2: `device.placement` expects one of fixed, round-robin, least-loaded, not \
             \"least\"",
        ),
        (
            "[metrics]\nlisten = '9101'\n",
            "main.toml:2: `metrics.listen` expects an address and port such as \
             \"127.0.0.1:9101\", or a path that starts with /, not \"9101\"",
        ),
    ] {
        assert_eq!(message::<Host>(text), expected);
    }
    let refused = message::<Host>("[metrics]\nlisten = '0.0.0.0:9101'\n");
    assert!(
        refused.starts_with("main.toml:2: `metrics.listen` is 0.0.0.0:9101, which other machines"),
        "{refused}"
    );
    // Two tables of one name are the parser's to refuse.
    let twice = message::<Host>("[vm.red]\ncid = 4\n[vm.red]\ncid = 5\n");
    assert!(twice.starts_with("main.toml:3: "), "{twice}");
    let guest = message::<Guest>("[vm.red]\nmemory = 1\n");
    assert!(guest.contains("it belongs in the host's"), "{guest}");
}

#[test]
fn vsock_without_a_port_is_refused() {
    assert_eq!(
        message::<Guest>("communicator = 'vsock'\n"),
        "main.toml:1: `communicator` is \"vsock\", but vsock.port names no port"
    );
}

#[test]
fn variables_are_checked_too() {
    let places = Places::new();
    let error = places.guest(&[("PARAGPU_SHM_SOKET", "/a")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "environment variable PARAGPU_SHM_SOKET: there is no variable `PARAGPU_SHM_SOKET`; \
         did you mean `PARAGPU_SHM_SOCKET`?"
    );
    let error = places
        .guest(&[("PARAGPU_COMMUNICATOR", "ring")])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "environment variable PARAGPU_COMMUNICATOR: `communicator` expects one of auto, shm, \
         unix, tcp, pci, vsock, not \"ring\""
    );
    let guest = places
        .guest(&[
            ("PARAGPU_COMMUNICATOR", "tcp"),
            ("PARAGPU_TCP_ADDRESS", "[::1]:7474"),
            ("PARAGPU_HOST_POOL_WARM", "none of ours"),
            ("PARAGPU_TEST_ANYTHING", "x"),
            ("PATH", "/bin"),
        ])
        .unwrap();
    assert_eq!(guest.tcp.address, Address(Some("[::1]:7474".into())));
    assert_eq!(guest.candidates(), [Communicator::Tcp]);

    let host = places
        .sources(&[
            ("PARAGPU_HOST_LIMITS_MEMORY", "3GiB"),
            ("PARAGPU_HOST_DEVICE_INDICES", "2, 0"),
            ("PARAGPU_COMMUNICATOR", "none of ours"),
        ])
        .load::<Host>()
        .unwrap();
    assert_eq!(host.values.limits.memory, Size(3 << 30));
    assert_eq!(host.values.device.indices.0, [2, 0]);

    let lists = [
        ("PARAGPU_HOST_DEVICE_INDICES", "[2, 0]"),
        ("PARAGPU_HOST_VSOCK_UNIX", "['/a', \"red=/b\"]"),
    ];
    let host = places.sources(&lists).load::<Host>().unwrap().values;
    assert_eq!(host.device.indices.0, [2, 0]);
    assert_eq!(host.vsock.unix.0.len(), 2);
}

#[test]
fn keys_that_differ_are_named() {
    let (old, mut new) = (Host::default(), Host::default());
    assert!(paragpu_config::differing(&old, &new).is_empty());
    new.device.indices.0.push(1);
    new.pool.warm = 7;
    assert_eq!(
        paragpu_config::differing(&old, &new),
        ["device.indices", "pool.warm"]
    );
}

#[test]
fn a_missing_key_is_reported_where_the_one_that_requires_it_is_set() {
    for (text, expected) in [
        (
            "[tcp]\nlisten = '127.0.0.1:0'\nca = '/a'\n",
            "main.toml:3: `tcp.certificate` is empty, and tcp.ca is not",
        ),
        (
            "\n[migration]\nlisten = '[::1]:0'\n",
            "main.toml:3: `migration.ca` is empty",
        ),
        (
            "[lease]\nsocket = '/a'\n",
            "main.toml:2: `lease.authority` is empty",
        ),
        (
            "[lease]\nsocket = '/a'\nauthority = ''\n",
            "main.toml:3: `lease.authority` is empty",
        ),
    ] {
        let refused = message::<Host>(text);
        assert!(refused.starts_with(expected), "{refused}");
    }
}

#[test]
fn auto_takes_what_is_there_in_its_order() {
    let places = Places::new();
    let mut guest = Guest::default();
    guest.pci.device = places.path("device");
    guest.shm.socket = places.path("socket");
    guest.unix.socket = places.path("socket");
    assert!(guest.candidates().is_empty());
    guest.tcp.address = Address(Some("localhost:1".into()));
    guest.vsock.port = 1;
    places.write("socket", "").write("device", "");
    assert_eq!(
        guest.candidates(),
        [
            Communicator::Pci,
            Communicator::Shm,
            Communicator::Unix,
            Communicator::Vsock,
            Communicator::Tcp
        ]
    );
    guest.communicator = Communicator::Unix;
    assert_eq!(guest.candidates(), [Communicator::Unix]);
}

fn variables_are_distinct<T: Configuration>() {
    let keys = Key::all::<T>();
    let variables: Vec<String> = keys.iter().filter_map(Key::variable::<T>).collect();
    let distinct: std::collections::BTreeSet<&String> = variables.iter().collect();
    assert_eq!(distinct.len(), variables.len());
    for name in &variables {
        assert!(
            !T::FOREIGN_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
        );
        assert_ne!(*name, format!("{}CONFIG", T::PREFIX));
    }
}

#[test]
fn every_key_has_its_own_variable() {
    variables_are_distinct::<Guest>();
    variables_are_distinct::<Host>();
}
