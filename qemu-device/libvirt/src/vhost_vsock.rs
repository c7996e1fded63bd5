//! A vsock that a vhost-user daemon serves, added to a domain's XML.
//!
//! libvirt has no element for it, so QEMU's own options are passed through libvirt's
//! namespace for them. A vhost-user daemon maps the guest's memory, so the memory must be
//! shared.
//!
//! Text outside the edits is preserved byte for byte, because a hook must not change what
//! it does not know.

use std::ops::Range;

use quick_xml::events::{BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::reader::NsReader;
use quick_xml::{Writer, XmlVersion};

use crate::Error;
use crate::xml::wrong;

/// libvirt's namespace for options of QEMU.
const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";
/// QEMU's name of the connection to the daemon.
const CHARDEV: &str = "paragpu-vsock";
/// The device, which also identifies a domain that has been edited. It takes a free
/// address: QEMU creates devices given as JSON, such as libvirt's with their addresses, in
/// order, and all other devices before them.
const DEVICE: &str =
    r#"{"driver":"vhost-user-vsock-pci","chardev":"paragpu-vsock","id":"paragpu-vsock0"}"#;

/// Adds a vsock to a domain. Its daemon listens at `socket`, a path as QEMU sees it. A
/// domain that already has it is returned unchanged.
///
/// # Errors
/// [`Error::Xml`]: it is not a domain of QEMU, it already has another vsock, or parts of it
/// contradict each other.
pub fn add(xml: &str, socket: &str) -> Result<String, Error> {
    let found = Found::read(xml)?;
    if found.has_ours {
        return Ok(xml.to_owned());
    }
    let mut edits = found.memory_edits()?;
    edits.push(found.options(socket)?);
    // Edits do not overlap.
    edits.sort_by_key(|(range, _)| range.start);
    let mut edited = String::with_capacity(xml.len() + 1024);
    let mut at = 0;
    for (range, text) in edits {
        edited.push_str(part(xml, at..range.start)?);
        edited.push_str(&text);
        at = range.end;
    }
    edited.push_str(part(xml, at..xml.len())?);
    Ok(edited)
}

fn part(xml: &str, range: Range<usize>) -> Result<&str, Error> {
    xml.get(range)
        .ok_or_else(|| wrong("an element is not where it was"))
}

/// A range of the text, and its replacement.
type Edit = (Range<usize>, String);

/// An element, and its position.
#[derive(Debug, Default, Clone)]
struct Element {
    /// Its name as written, with the prefix.
    name: String,
    /// The range of its start tag, or of the whole element if it is empty.
    start: Range<usize>,
    /// The start of its end tag; `None` for `<element/>`.
    end: Option<usize>,
}

impl Element {
    /// Inserts text as the element's last child.
    fn append(&self, xml: &str) -> Edit {
        match self.end {
            Some(end) => (end..end, xml.to_owned()),
            // `<element a="b"/>`: its attributes are few, and ours to keep.
            None => (
                self.start.end.saturating_sub(2)..self.start.end,
                format!(">{xml}</{}>", self.name),
            ),
        }
    }
}

/// The relevant attribute of an element, and the element's position.
#[derive(Debug, Clone)]
struct Setting {
    value: Option<String>,
    place: Range<usize>,
}

/// The parts of a domain that are relevant for a vsock.
#[derive(Debug, Default)]
struct Found {
    domain: Element,
    memory: Option<Element>,
    source: Option<Setting>,
    access: Option<Setting>,
    has_huge_pages: bool,
    options: Option<Element>,
    has_ours: bool,
}

impl Found {
    fn read(xml: &str) -> Result<Self, Error> {
        let mut reader = NsReader::from_str(xml);
        reader.config_mut().check_end_names = true;
        let mut walk = Walk::default();
        loop {
            let before = position(reader.buffer_position())?;
            let (space, event) = reader.read_resolved_event().map_err(wrong)?;
            let is_qemu = matches!(space, ResolveResult::Bound(name) if name.as_ref() == QEMU);
            let event = event.into_owned();
            let place = before..position(reader.buffer_position())?;
            match event {
                Event::Start(start) => walk.open(&start, is_qemu, place, true)?,
                Event::Empty(start) => {
                    walk.open(&start, is_qemu, place, false)?;
                    walk.close(None);
                }
                Event::End(_) => walk.close(Some(place)),
                Event::DocType(_) => {
                    return Err(wrong(
                        "it has a document type, unlike libvirt's descriptions",
                    ));
                }
                Event::Decl(declaration) => check_encoding(&declaration)?,
                Event::Eof => return walk.end(),
                _ => {}
            }
        }
    }

    /// The edits that make the guest's memory shared.
    fn memory_edits(&self) -> Result<Vec<Edit>, Error> {
        const SOURCE: &str = r#"<source type="memfd"/>"#;
        const ACCESS: &str = r#"<access mode="shared"/>"#;
        let Some(memory) = &self.memory else {
            let element = format!("<memoryBacking>{SOURCE}{ACCESS}</memoryBacking>");
            return Ok(vec![self.domain.append(&element)]);
        };
        let (mut edits, mut more) = (Vec::new(), String::new());
        match &self.source {
            Some(Setting { value, place }) => match value.as_deref() {
                Some("memfd" | "file") => {}
                Some("anonymous") => edits.push((place.clone(), SOURCE.to_owned())),
                other => {
                    let other = other.unwrap_or("nothing");
                    return Err(wrong(format!("its memory comes from {other:?}")));
                }
            },
            // Huge pages are backed by files without a source.
            None if self.has_huge_pages => {}
            None => more.push_str(SOURCE),
        }
        match &self.access {
            Some(Setting { value, .. }) if value.as_deref() == Some("shared") => {}
            Some(Setting { place, .. }) => edits.push((place.clone(), ACCESS.to_owned())),
            None => more.push_str(ACCESS),
        }
        if !more.is_empty() {
            edits.push(memory.append(&more));
        }
        Ok(edits)
    }

    /// The edit that adds QEMU's options.
    fn options(&self, socket: &str) -> Result<Edit, Error> {
        if socket.contains(|letter: char| letter.is_control()) {
            return Err(wrong("the socket's path has control characters"));
        }
        // A comma ends an option's value; two stand for one.
        let socket = socket.replace(',', ",,");
        let chardev = format!("socket,id={CHARDEV},path={socket}");
        let values = ["-chardev", &chardev, "-device", DEVICE];
        let prefix = match &self.options {
            Some(options) => options.name.rsplit_once(':').map(|(prefix, _)| prefix),
            None => Some("qemu"),
        };
        let arg = prefix.map_or("arg".to_owned(), |prefix| format!("{prefix}:arg"));
        let mut writer = Writer::new(Vec::new());
        for value in values {
            let element = writer.create_element(arg.as_str());
            let written = element.with_attribute(("value", value)).write_empty();
            written.map_err(wrong)?;
        }
        let arguments = String::from_utf8(writer.into_inner()).map_err(wrong)?;
        Ok(match &self.options {
            Some(options) => options.append(&arguments),
            None => self.domain.append(&format!(
                r#"<qemu:commandline xmlns:qemu="{QEMU}">{arguments}</qemu:commandline>"#
            )),
        })
    }
}

fn position(at: u64) -> Result<usize, Error> {
    usize::try_from(at).map_err(wrong)
}

fn check_encoding(declaration: &quick_xml::events::BytesDecl<'_>) -> Result<(), Error> {
    match declaration.encoding() {
        None => Ok(()),
        Some(encoding) => {
            let encoding = encoding.map_err(wrong)?;
            match encoding.eq_ignore_ascii_case("utf-8") {
                true => Ok(()),
                false => Err(wrong("its encoding is not UTF-8")),
            }
        }
    }
}

/// The state of reading a domain.
#[derive(Debug, Default)]
struct Walk {
    found: Found,
    /// Names of the open elements. Elements of QEMU's namespace have the prefix `qemu:`
    /// here, whatever it is in the text.
    path: Vec<String>,
    is_over: bool,
}

impl Walk {
    fn open(
        &mut self,
        start: &BytesStart<'_>,
        is_qemu: bool,
        place: Range<usize>,
        has_end: bool,
    ) -> Result<(), Error> {
        let name = start.name().as_ref().to_owned();
        let known = match is_qemu {
            true => format!("qemu:{}", start.local_name().as_ref()),
            // Must not be mistaken for one of that namespace.
            false => name.replace("qemu:", "other:"),
        };
        self.path.push(known);
        if self.is_over {
            return Err(wrong("it continues after the domain"));
        }
        // All attributes are checked, because a search for one would miss a duplicate.
        for attribute in start.attributes() {
            attribute.map_err(wrong)?;
        }
        let element = Element {
            name,
            start: place.clone(),
            end: has_end.then_some(place.end),
        };
        let value = |name: &str| attribute(start, name);
        let setting = |name: &str| {
            let value = value(name)?;
            let place = place.clone();
            Ok::<_, Error>(Setting { value, place })
        };
        let found = &mut self.found;
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["domain"] => {
                match value("type")?.as_deref() {
                    Some("kvm" | "qemu") => {}
                    _ => return Err(wrong("it is not a domain of QEMU")),
                }
                found.domain = element;
            }
            [_] => return Err(wrong("it is not a domain")),
            ["domain", "os", "type"] if value("arch")?.as_deref() == Some("s390x") => {
                return Err(wrong("s390x has no PCI device of this kind"));
            }
            ["domain", "memoryBacking"] => once(&mut found.memory, element)?,
            ["domain", "memoryBacking", "source"] => once(&mut found.source, setting("type")?)?,
            ["domain", "memoryBacking", "access"] => once(&mut found.access, setting("mode")?)?,
            ["domain", "memoryBacking", "hugepages"] => found.has_huge_pages = true,
            ["domain", "cpu", "numa", "cell"]
                if value("memAccess")?.is_some_and(|access| access != "shared") =>
            {
                return Err(wrong("a NUMA cell of it has private memory"));
            }
            ["domain", "devices", "vsock"] => {
                return Err(wrong(
                    "it has a vsock, and a guest has only one: leave out autoattachVSOCK",
                ));
            }
            ["domain", "qemu:commandline"] => once(&mut found.options, element)?,
            ["domain", "qemu:commandline", "qemu:arg"] => match value("value")? {
                Some(text) if text == DEVICE => found.has_ours = true,
                Some(text) if text.contains("vhost-user-vsock") || text.contains("vhost-vsock") => {
                    return Err(wrong("QEMU's options give it another vsock"));
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    /// Closes an element. `end` is the range of its end tag, if there is one.
    fn close(&mut self, end: Option<Range<usize>>) {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let found = &mut self.found;
        let element = match path.as_slice() {
            ["domain"] => Some(&mut found.domain),
            ["domain", "memoryBacking"] => found.memory.as_mut(),
            ["domain", "qemu:commandline"] => found.options.as_mut(),
            _ => None,
        };
        if let Some(element) = element {
            element.end = end.as_ref().map(|end| end.start);
        }
        let setting = match path.as_slice() {
            ["domain", "memoryBacking", "source"] => found.source.as_mut(),
            ["domain", "memoryBacking", "access"] => found.access.as_mut(),
            _ => None,
        };
        // For `<access mode="…"></access>`, as Go writes it, all of it is replaced.
        if let (Some(setting), Some(end)) = (setting, end) {
            setting.place.end = end.end;
        }
        self.path.pop();
        self.is_over |= self.path.is_empty();
    }

    fn end(self) -> Result<Found, Error> {
        match self.is_over && self.path.is_empty() {
            true => Ok(self.found),
            false => Err(wrong("it is incomplete")),
        }
    }
}

/// Stores a setting and refuses a second one, of which libvirt might use either.
fn once<T>(place: &mut Option<T>, new: T) -> Result<(), Error> {
    match place.replace(new) {
        None => Ok(()),
        Some(_) => Err(wrong("it has one of its settings twice")),
    }
}

fn attribute(start: &BytesStart<'_>, name: &str) -> Result<Option<String>, Error> {
    let found = start.try_get_attribute(name).map_err(wrong)?;
    let value = |attribute: quick_xml::events::attributes::Attribute<'_>| {
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        Ok(value.map_err(wrong)?.into_owned())
    };
    found.map(value).transpose()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOCKET: &str = "/var/run/kubevirt-hooks/hook-sidecar-0/paragpu/vhost";

    /// A domain as virt-launcher passes it. Go writes no `<empty/>` elements.
    fn domain(inner: &str) -> String {
        format!(
            "<domain type=\"kvm\" xmlns:qemu=\"{QEMU}\">\n\t<name>default_vm</name>\n\t\
             <memory unit=\"b\">1073741824</memory>\n\t<os>\n\t\t<type arch=\"x86_64\" \
             machine=\"q35\">hvm</type>\n\t</os>\n\t<devices>\n\t\t<controller type=\"usb\" \
             index=\"0\" model=\"none\"></controller>\n\t</devices>\n\t{inner}<vcpu \
             placement=\"static\">1</vcpu>\n</domain>"
        )
    }

    fn added(inner: &str) -> String {
        add(&domain(inner), SOCKET).unwrap()
    }

    fn refusal(xml: &str) -> String {
        add(xml, SOCKET).unwrap_err().to_string()
    }

    const OPTIONS: &str = concat!(
        r#"<qemu:arg value="-chardev"/>"#,
        r#"<qemu:arg value="socket,id=paragpu-vsock,"#,
        r#"path=/var/run/kubevirt-hooks/hook-sidecar-0/paragpu/vhost"/>"#,
        r#"<qemu:arg value="-device"/>"#,
        r#"<qemu:arg value="{&quot;driver&quot;:&quot;vhost-user-vsock-pci&quot;,"#,
        r#"&quot;chardev&quot;:&quot;paragpu-vsock&quot;,&quot;id&quot;:&quot;paragpu-vsock0&quot;}"/>"#,
    );
    const SHARED: &str = r#"<source type="memfd"/><access mode="shared"/>"#;

    #[test]
    fn a_plain_domain_gets_shared_memory_and_the_device_and_keeps_the_rest() {
        let before = domain("");
        let after = add(&before, SOCKET).unwrap();
        let new = format!(
            "<memoryBacking>{SHARED}</memoryBacking><qemu:commandline \
             xmlns:qemu=\"{QEMU}\">{OPTIONS}</qemu:commandline>"
        );
        assert_eq!(
            after,
            before.replace("</domain>", &format!("{new}</domain>"))
        );
        // The hook may be called again with its own output.
        assert_eq!(add(&after, SOCKET).unwrap(), after);
    }

    #[test]
    fn memory_that_is_not_shared_becomes_so() {
        let memory = |inner: &str| {
            let after = added(&format!("<memoryBacking>{inner}</memoryBacking>"));
            let begin = after.find("<memoryBacking>").unwrap() + "<memoryBacking>".len();
            let end = after.find("</memoryBacking>").unwrap();
            after[begin..end].to_owned()
        };
        let pages = r#"<hugepages><page size="2048" unit="KiB"></page></hugepages>"#;
        let shared = r#"<access mode="shared"/>"#;
        assert_eq!(memory(pages), format!("{pages}{shared}"));
        assert_eq!(memory("<locked/>"), format!("<locked/>{SHARED}"));
        assert_eq!(memory(SHARED), SHARED);
        let go = r#"<source type="anonymous"></source><access mode="private"></access>"#;
        assert_eq!(memory(go), SHARED);
        let file = r#"<source type="file"/>"#;
        assert_eq!(memory(file), format!("{file}{shared}"));
        let empty = added("<memoryBacking/>");
        assert!(
            empty.contains(&format!("<memoryBacking>{SHARED}</memoryBacking>")),
            "{empty}"
        );
    }

    #[test]
    fn options_of_others_stay_whatever_their_prefix() {
        let theirs = r#"<qemu:arg value="-foo"></qemu:arg>"#;
        let after = added(&format!("<qemu:commandline>{theirs}</qemu:commandline>"));
        assert!(after.contains(&format!(
            "<qemu:commandline>{theirs}{OPTIONS}</qemu:commandline>"
        )));
        let after = added(&format!("<q:commandline xmlns:q='{QEMU}'/>"));
        let own = OPTIONS.replace("qemu:", "q:");
        let whole = format!("<q:commandline xmlns:q='{QEMU}'>{own}</q:commandline>");
        assert!(after.contains(&whole), "{after}");
        // Elements of another namespace are not QEMU's options.
        let other =
            "<qemu:commandline xmlns:qemu='urn:other'><qemu:arg value='x'/></qemu:commandline>";
        let after = added(other);
        assert!(after.contains(other) && after.contains(OPTIONS), "{after}");
    }

    #[test]
    fn a_path_is_one_value_and_one_attribute() {
        let after = add(&domain(""), "/run/a,b&\"c<").unwrap();
        assert!(after.contains("path=/run/a,,b&amp;&quot;c&lt;"), "{after}");
        assert!(add(&domain(""), "/run/a\nb").is_err());
    }

    #[test]
    fn a_domain_that_cannot_have_it_is_refused_with_a_reason() {
        for (inner, reason) in [
            (
                "<devices><vsock model='virtio'><cid auto='yes'/></vsock></devices>",
                "has a vsock",
            ),
            ("<memoryBacking/><memoryBacking/>", "twice"),
            (
                "<memoryBacking><source type='disk'/></memoryBacking>",
                "\"disk\"",
            ),
            ("<memoryBacking><source/></memoryBacking>", "\"nothing\""),
            (
                "<cpu><numa><cell id='0' memAccess='private'/></numa></cpu>",
                "private memory",
            ),
            ("<os><type arch='s390x'>hvm</type></os>", "s390x"),
            (
                "<qemu:commandline><qemu:arg value='vhost-vsock-pci,guest-cid=4'/></qemu:commandline>",
                "another vsock",
            ),
        ] {
            let said = refusal(&domain(inner));
            assert!(said.contains(reason), "{inner}: {said}");
        }
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        let good = domain("");
        for (xml, reason) in [
            (String::new(), "incomplete"),
            ("<domain type='kvm'>".into(), "incomplete"),
            (good.replace("</devices>", ""), "cannot be read"),
            (good.replace("\"kvm\"", "\"xen\""), "not a domain of QEMU"),
            (good.replace("domain", "network"), "is not a domain"),
            (format!("{good}{good}"), "after the domain"),
            (
                format!("<!DOCTYPE d [<!ENTITY a \"b\">]>{good}"),
                "document type",
            ),
            (
                format!("<?xml version='1.0' encoding='UTF-16'?>{good}"),
                "UTF-8",
            ),
            (
                good.replace("type=\"kvm\"", "type=\"kvm\" type=\"xen\""),
                "cannot be read",
            ),
            (
                good.replace("type=\"kvm\"", "type=\"&unknown;\""),
                "cannot be read",
            ),
        ] {
            let said = refusal(&xml);
            assert!(said.contains(reason), "{xml}: {said}");
        }
        // Comments and CDATA are only text.
        let odd =
            "<!-- <vsock/> </domain> --><description><![CDATA[</domain><vsock>]]></description>";
        assert!(added(odd).contains(odd));
    }

    proptest! {
        #[test]
        fn any_text_is_edited_or_refused(text in "[<>/='&;:a-z \\PC]{0,200}") {
            let _ = add(&text, SOCKET);
            if let Ok(after) = add(&domain(&text), SOCKET) {
                // The output is read as intended.
                prop_assert_eq!(add(&after, SOCKET).unwrap(), after);
            }
        }
    }
}
