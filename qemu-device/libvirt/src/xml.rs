//! Writes the device's element, and reads libvirt's descriptions of domains.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, Writer, XmlVersion};

use crate::Error;

/// The `name` of the element, which distinguishes this device from other shared memory.
pub const NAME: &str = "paragpu";

/// The model of the device.
const MODEL: &str = "ivshmem-doorbell";

/// The model of controllers with a slot for one PCIe device.
const PORT: &str = "pcie-root-port";

/// The place of a device: the number of the bus behind a PCIe port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port(pub u8);

/// The device's element: libvirt's `<shmem>`, whose memory and interrupts come from the
/// process at `socket`. Without a port, libvirt chooses the place.
///
/// The domain needs no `<memoryBacking>`, because the device process provides the memory.
///
/// # Errors
/// [`Error::Xml`] if the path is not UTF-8.
pub fn device(socket: &Path, port: Option<Port>) -> Result<String, Error> {
    let socket = socket
        .to_str()
        .ok_or_else(|| Error::Xml(format!("{} is not UTF-8", socket.display())))?;
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    writer
        .create_element("shmem")
        .with_attribute(("name", NAME))
        .write_inner_content(|inner| {
            inner
                .create_element("model")
                .with_attribute(("type", MODEL))
                .write_empty()?;
            inner
                .create_element("server")
                .with_attribute(("path", socket))
                .write_empty()?;
            inner
                .create_element("msi")
                .with_attributes([("vectors", "1"), ("ioeventfd", "on")])
                .write_empty()?;
            if let Some(Port(bus)) = port {
                inner
                    .create_element("address")
                    .with_attributes([
                        ("type", "pci"),
                        ("domain", "0x0000"),
                        ("bus", &format!("{bus:#04x}")),
                        ("slot", "0x00"),
                        ("function", "0x0"),
                    ])
                    .write_empty()?;
            }
            Ok(())
        })
        .map_err(wrong)?;
    String::from_utf8(writer.into_inner()).map_err(wrong)
}

/// The namespace of the mark of domains that migrate.
pub const NAMESPACE: &str = "urn:paragpu:libvirt:1";
/// Its prefix, which libvirt keeps.
pub const PREFIX: &str = "paragpu";
/// The mark's name in a domain's XML.
const MOVE_MARK: &str = "paragpu:ahead";

/// The mark of a domain whose virtual GPUs have moved to another host, without the prefix,
/// as libvirt requires.
///
/// # Errors
/// [`Error::Xml`].
pub fn gpus_moved(vm: &str) -> Result<String, Error> {
    let mut writer = Writer::new(Vec::new());
    writer
        .create_element("ahead")
        .with_attribute(("vm", vm))
        .write_empty()
        .map_err(wrong)?;
    String::from_utf8(writer.into_inner()).map_err(wrong)
}

/// A PCIe port that a configuration does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPort {
    /// The place of a device that is plugged into it.
    pub port: Port,
    /// The controller's element.
    pub element: String,
}

/// This device in a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The socket of its device process.
    pub socket: PathBuf,
    /// The element as written there.
    pub element: String,
    /// Its bus, if libvirt has chosen one.
    pub port: Option<Port>,
}

/// The relevant parts of a domain's description.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    /// The domain's UUID.
    pub uuid: String,
    /// Its number while it is running. It differs after each start.
    pub number: Option<u32>,
    /// The context identifier of its vsock.
    pub cid: Option<u32>,
    /// The VM's name, if the domain has the mark that its virtual GPUs have moved.
    pub gpus_moved_of: Option<String>,
    /// Devices of this kind: more than one only in XML written by hand.
    pub devices: Vec<Device>,
    /// Whether it is a PCIe machine, on which devices are plugged into ports.
    pub has_pcie: bool,
    /// Ports without a device, in the order of their buses.
    pub free_ports: Vec<Port>,
    /// The largest numbers of PCI controllers: index, chassis, port.
    largest: [u8; 3],
}

impl Description {
    /// Reads a domain's XML from libvirt.
    ///
    /// # Errors
    /// [`Error::Xml`].
    pub fn parse(xml: &str) -> Result<Self, Error> {
        let mut parser = Parser::default();
        let mut reader = Reader::from_str(xml);
        loop {
            let before = reader.buffer_position();
            let event = reader.read_event().map_err(wrong)?;
            let after = reader.buffer_position();
            match event {
                Event::Start(start) => {
                    parser.open(&start, before)?;
                }
                Event::Empty(start) => {
                    parser.open(&start, before)?;
                    parser.close(xml, after);
                }
                Event::End(_) => parser.close(xml, after),
                Event::Text(text) if parser.is_at(&["domain", "uuid"]) => {
                    parser.machine.uuid = text.trim().to_owned();
                }
                Event::Eof => return Ok(parser.end()),
                _ => {}
            }
        }
    }
}

impl Description {
    /// A new port besides the existing ones.
    ///
    /// # Errors
    /// [`Error::Xml`] if there is no number left.
    pub fn new_port(&self) -> Result<NewPort, Error> {
        let [index, chassis, port] = self.largest.map(|number| number.checked_add(1));
        let (Some(index), Some(chassis), Some(port)) = (index, chassis, port) else {
            return Err(Error::Xml("no free index for a PCI controller".into()));
        };
        let mut writer = Writer::new(Vec::new());
        writer
            .create_element("controller")
            .with_attributes([
                ("type", "pci"),
                ("index", &index.to_string()),
                ("model", PORT),
            ])
            .write_inner_content(|inner| {
                inner
                    .create_element("model")
                    .with_attribute(("name", PORT))
                    .write_empty()?;
                inner
                    .create_element("target")
                    .with_attribute(("chassis", chassis.to_string().as_str()))
                    .with_attribute(("port", port.to_string().as_str()))
                    .write_empty()?;
                Ok(())
            })
            .map_err(wrong)?;
        let element = String::from_utf8(writer.into_inner()).map_err(wrong)?;
        Ok(NewPort {
            port: Port(index),
            element,
        })
    }
}

pub(crate) fn wrong(error: impl std::fmt::Display) -> Error {
    Error::Xml(error.to_string())
}

/// A `<shmem>` that is being read.
#[derive(Default)]
struct Shmem {
    begin: u64,
    is_ours: bool,
    is_doorbell: bool,
    socket: Option<PathBuf>,
    port: Option<Port>,
}

#[derive(Default)]
struct Parser {
    machine: Description,
    /// Names of the open elements.
    path: Vec<String>,
    shmem: Option<Shmem>,
    ports: BTreeSet<u8>,
    taken: BTreeSet<u8>,
}

impl Parser {
    fn open(&mut self, start: &BytesStart<'_>, begin: u64) -> Result<(), Error> {
        self.path.push(start.name().as_ref().to_owned());
        let value = |name: &str| attribute(start, name);
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["domain"] => {
                self.machine.number = value("id")?.and_then(|id| id.parse().ok());
            }
            ["domain", "devices", "vsock", "cid"] => {
                self.machine.cid = value("address")?.and_then(|cid| cid.parse().ok());
            }
            ["domain", "metadata", MOVE_MARK] => self.machine.gpus_moved_of = value("vm")?,
            ["domain", "devices", "shmem"] => {
                self.shmem = Some(Shmem {
                    begin,
                    is_ours: value("name")?.as_deref() == Some(NAME),
                    ..Shmem::default()
                });
            }
            ["domain", "devices", "shmem", "model"] => {
                if let Some(shmem) = &mut self.shmem {
                    shmem.is_doorbell = value("type")?.as_deref() == Some(MODEL);
                }
            }
            ["domain", "devices", "shmem", "server"] => {
                if let Some(shmem) = &mut self.shmem {
                    shmem.socket = value("path")?.map(PathBuf::from);
                }
            }
            ["domain", "devices", "controller"] if value("type")?.as_deref() == Some("pci") => {
                let index = value("index")?.as_deref().and_then(number);
                self.count(0, index);
                match value("model")?.as_deref() {
                    Some("pcie-root") => self.machine.has_pcie = true,
                    Some(PORT) => self.ports.extend(index),
                    _ => {}
                }
            }
            ["domain", "devices", "controller", "target"] => {
                self.count(1, value("chassis")?.as_deref().and_then(number));
                self.count(2, value("port")?.as_deref().and_then(number));
            }
            // The device's own address. A passed-through device also has its host address,
            // in a nested element.
            ["domain", "devices", _, "address"] if value("type")?.as_deref() == Some("pci") => {
                let bus = value("bus")?.as_deref().and_then(number);
                self.taken.extend(bus);
                if let Some(shmem) = &mut self.shmem {
                    shmem.port = bus.map(Port);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self, xml: &str, end: u64) {
        if self.is_at(&["domain", "devices", "shmem"])
            && let Some(Shmem {
                begin,
                is_ours: true,
                is_doorbell: true,
                socket: Some(socket),
                port,
            }) = self.shmem.take()
        {
            let range = usize::try_from(begin).ok().zip(usize::try_from(end).ok());
            let element = range.and_then(|(begin, end)| xml.get(begin..end));
            self.machine.devices.push(Device {
                socket,
                element: element.unwrap_or_default().to_owned(),
                port,
            });
        }
        self.path.pop();
    }

    fn count(&mut self, which: usize, number: Option<u8>) {
        if let (Some(largest), Some(number)) = (self.machine.largest.get_mut(which), number) {
            *largest = number.max(*largest);
        }
    }

    fn is_at(&self, path: &[&str]) -> bool {
        self.path == path
    }

    fn end(self) -> Description {
        Description {
            free_ports: self
                .ports
                .difference(&self.taken)
                .copied()
                .map(Port)
                .collect(),
            ..self.machine
        }
    }
}

fn attribute(start: &BytesStart<'_>, name: &str) -> Result<Option<String>, Error> {
    let found = start.try_get_attribute(name).map_err(wrong)?;
    found
        .map(|attribute| {
            Ok(attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(wrong)?
                .into_owned())
        })
        .transpose()
}

/// A number as libvirt writes it: decimal, or hexadecimal with its prefix.
fn number(text: &str) -> Option<u8> {
    match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The relevant parts of a domain as libvirt 9.0 describes it.
    fn domain(devices: &str) -> String {
        format!(
            "<domain type='kvm' id='3'>
  <name>web</name>
  <uuid>505f230a-b86d-4c23-a854-84fd05fb3893</uuid>
  <devices>
    <controller type='usb' index='7' model='qemu-xhci'>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </controller>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'>
      <target chassis='1' port='0x8'/>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x01' function='0x0'/>
    </controller>
    <controller type='pci' index='12' model='pcie-root-port'>
      <target chassis='12' port='0x13'/>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x01' function='0x3'/>
    </controller>
    <hostdev mode='subsystem' type='pci'>
      <source>
        <address type='pci' domain='0x0000' bus='0x0c' slot='0x00' function='0x0'/>
      </source>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </hostdev>
    {devices}
  </devices>
  <metadata><shmem name='paragpu'><model type='ivshmem-doorbell'/><server path='/x'/></shmem></metadata>
</domain>"
        )
    }

    #[test]
    fn our_device_is_found_as_it_stands_there() {
        let ours = "<shmem name='paragpu' role='peer'>
      <model type='ivshmem-doorbell'/>
      <server path='/run/paragpu-device/a&amp;b.sock'/>
      <msi vectors='1' ioeventfd='on'/>
      <alias name='shmem0'/>
      <address type='pci' domain='0x0000' bus='0x0c' slot='0x00' function='0x0'/>
    </shmem>";
        let others =
            "<shmem name='paragpu'><model type='ivshmem-plain'/><size unit='M'>4</size></shmem>
    <shmem name='other'><model type='ivshmem-doorbell'/><server path='/run/o'/></shmem>";
        let machine = Description::parse(&domain(&format!("{others}{ours}"))).unwrap();
        assert_eq!(machine.uuid, "505f230a-b86d-4c23-a854-84fd05fb3893");
        assert_eq!(
            machine.devices,
            [Device {
                socket: "/run/paragpu-device/a&b.sock".into(),
                element: ours.into(),
                port: Some(Port(12)),
            }]
        );
        assert_eq!(machine.free_ports, []);
        assert_eq!(Description::parse(&domain(others)).unwrap().devices, []);
    }

    #[test]
    fn a_free_port_is_one_without_a_device() {
        let machine = Description::parse(&domain("")).unwrap();
        assert!(machine.has_pcie);
        assert_eq!(machine.free_ports, [Port(12)]);
        let new = machine.new_port().unwrap();
        assert_eq!(new.port, Port(13));
        let with_new = Description::parse(&domain(&new.element)).unwrap();
        assert_eq!(with_new.free_ports, [Port(12), Port(13)]);
        assert!(
            new.element.contains(r#"chassis="13" port="20""#),
            "{}",
            new.element
        );
        let full = "<controller type='pci' index='255' model='pcie-root-port'/>";
        assert!(
            Description::parse(&domain(full))
                .unwrap()
                .new_port()
                .is_err()
        );
    }

    #[test]
    fn what_is_no_xml_is_an_error() {
        for text in [
            "<domain><devices>",
            "<a></b>",
            "<domain x=1/>",
            "<domain><!",
        ] {
            // Unclosed elements affect only themselves.
            if let Ok(machine) = Description::parse(text) {
                assert_eq!(machine.devices, [], "{text}");
            }
        }
        assert!(Description::parse("<a></b>").is_err());
    }

    #[test]
    fn a_running_domain_has_a_number_and_its_vsock_an_identifier() {
        let xml = |cid: &str| {
            format!(
                "<domain type='kvm' id='12'><devices><hostdev><cid address='4'/></hostdev>\
                 <vsock model='virtio'>{cid}</vsock></devices></domain>"
            )
        };
        let read = |cid| Description::parse(&xml(cid)).unwrap();
        let machine = read("<cid auto='yes' address='3'/>");
        assert_eq!((machine.number, machine.cid), (Some(12), Some(3)));
        // A domain that is not running has none yet.
        assert_eq!(read("<cid auto='yes'/>").cid, None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[<>/='&;a-z \\PC]{0,200}") {
            let _ = Description::parse(&text);
            let _ = Description::parse(&domain(&text));
        }

        #[test]
        fn what_is_written_is_read(name in "[^\\x00-\\x1f\\x7f-\\x9f\u{fffe}\u{ffff}]{1,40}", bus in 1_u8..) {
            let socket = PathBuf::from(format!("/run/{name}"));
            let port = Some(Port(bus));
            let element = device(&socket, port).unwrap();
            let machine = Description::parse(&domain(&element)).unwrap();
            prop_assert_eq!(machine.devices, [Device { socket, element, port }]);
        }
    }
}
