//! Files that are damaged, foreign, hostile or contradictory: the line, the reason and what to do.

use super::{boxes, machine, refused};
use consort_algorithms::hardware::exchange::{BYTES_MAX, read, read_hardware};
use consort_algorithms::hardware::{Hardware, Network};

/// The whole sentence, up to what to do.
fn fault(text: &str) -> String {
    let error = refused(text);
    assert!(!error.remedy.is_empty(), "{error}");
    error.to_string().split(';').next().unwrap_or_default().to_owned()
}

/// The file of DGX-1 with one text replaced, and the line where that was.
fn changed(from: &str, to: &str) -> (String, usize) {
    let text = boxes::dgx_1();
    let at = text.find(from).unwrap_or_else(|| panic!("{from} is not in\n{text}"));
    (text.replacen(from, to, 1), text[..at].matches('\n').count() + 1)
}

#[test]
fn a_file_that_is_cut_off() {
    let whole = boxes::dgx_1();
    for part in 1..16 {
        let at = whole.len() * part / 16;
        let error = refused(&whole[..at]);
        assert!(error.line.is_some() && error.reason.contains("damaged"), "{error}");
        assert!(error.remedy.contains("cut off"), "{error}");
    }
    let text = machine(&whole).to_string();
    let cut = text.len() - text.lines().last().expect("lines").len() / 2;
    let error = refused(&text[..cut]);
    assert_eq!(error.line, Some(text.lines().count() as u32), "{error}");
}

#[test]
fn a_file_of_another_format() {
    let known = "known are topologies and graphs of NCCL and RCCL";
    for (bytes, reason) in [
        (&b"{\"gpus\": 8}"[..], "it looks like JSON"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is XML of another kind, with the element <svg>"),
        (
            b"\x7fELF\x02\x01\x01\0",
            "it begins with \"\\u{7f}ELF\\u{2}\\u{1}\\u{1}\\0\", as no known format does",
        ),
        (b"\xff\x00\xc3", "it is no text in UTF-8"),
        (b"  \n\n", "it is empty"),
        (b"Dear all,\n", "it begins with \"Dear all,\", as no known format does"),
        (b"<!-- nothing", "it is XML without an element"),
    ] {
        let error = read(bytes).expect_err("it is foreign");
        assert!(error.reason.starts_with(reason) && error.remedy.starts_with(known), "{error}");
    }
    assert!(read(b"\x1f\x8b\x08").expect_err("gzip").remedy.contains("gunzip"));
    assert!(read(b"\xff\xfe<\0").expect_err("UTF-16").remedy.contains("iconv"));
    let graph = read(b"topology t\ncosts send_ns=1").expect_err("a rank graph that is cut off");
    assert_eq!(
        (graph.line, graph.format.map(|format| format.to_string())),
        (Some(2), Some("a graph of ranks as text".into()))
    );
}

#[test]
fn a_file_that_is_far_too_long() {
    // Not a gigabyte: one byte too many is refused without being looked at.
    let error = read(&vec![b'<'; BYTES_MAX + 1]).expect_err("it is too long");
    assert_eq!(error.reason, "16777217 bytes are more than any topology has");
    let many = format!("<system version='1'><cpu numaid='0'>{}</cpu></system>", "<pci/>".repeat(200_001));
    assert!(fault(&many).ends_with("more than 200,000 elements"));
}

#[test]
fn a_file_with_cycles() {
    // The inner switch has the address of the outer one.
    let text = "<system version='1'>\n<cpu numaid='0'>\n<pci busid='0000:03:00.0' class='0x060400'>\n\
                <pci busid='0000:04:00.0' class='0x060400'>\n<pci busid='0000:03:00.0' class='0x060400'/>\n</pci></pci></cpu></system>";
    assert_eq!(fault(text), "line 3 of an NCCL topology: the switch 0000:03:00.0 lies below itself");
    let head = "hardware loop\nhost h\nnuma n on=h number=0\nbridge a on=h\nbridge b on=h\nlink h n local\n";
    let round = format!("{head}link a b pcie\nlink b a pcie\n");
    assert!(fault(&round).ends_with("lies below itself"), "{}", fault(&round));
    let twice = format!("{head}link n b pcie\nlink a b pcie\n");
    assert_eq!(fault(&twice), "line 5 of a machine as text: b is below both n and a");
    let (own, line) = changed("target=\"0000:11:00.0\"", "target=\"0000:10:00.0\"");
    assert_eq!(
        fault(&own),
        format!("line {line} of an NCCL topology: a GPU is linked to itself (0000:10:00.0)")
    );
}

#[test]
fn a_file_with_the_ids_of_two_boxes_mixed() {
    let two = boxes::dgx_1().replace("</system>\n", "") + boxes::dgx_1().split_once('\n').expect("lines").1;
    let error = refused(&two);
    assert!(error.reason.starts_with("there are two of one "), "{error}");
    assert!(error.remedy.contains("may mix two hosts"), "{error}");
    assert!(
        error.line.is_some_and(|line| line as usize > boxes::dgx_1().lines().count() - 2),
        "the second is named"
    );
    let (same, line) = changed("busid=\"0000:12:00.0\"", "busid=\"0000:11:00.0\"");
    assert_eq!(
        fault(&same),
        format!("line {line} of an NCCL topology: there are two of one GPU at 0000:11:00.0: gpu1 and gpu2")
    );
    let (same, line) = changed("dev=\"3\"", "dev=\"2\"");
    let expected = "there are two of one GPU with the number 2: gpu2 and gpu3";
    // The line is that of the device.
    assert_eq!(fault(&same), format!("line {} of an NCCL topology: {expected}", line - 1));
}

#[test]
fn a_file_whose_links_contradict_each_other() {
    let (text, _) = changed("target=\"0000:11:00.0\" count=\"2\"", "target=\"0000:11:00.0\" count=\"1\"");
    let error = fault(&text);
    assert!(error.ends_with("0000:10:00.0 has 1 links to 0000:11:00.0, which has 2 to it"), "{error}");
    let (text, line) = changed("count=\"2\"", "count=\"4000000000\"");
    assert_eq!(fault(&text), format!("line {line} of an NCCL topology: 4000000000 links side by side"));
    let (text, line) = changed(
        "target=\"0000:11:00.0\" count=\"2\" tclass=\"0x030200\"",
        "target=\"0000:ee:00.0\" count=\"2\"",
    );
    let expected = "the link leads to 0000:ee:00.0, which is not in the file, and has no tclass";
    assert_eq!(fault(&text), format!("line {line} of an NCCL topology: {expected}"));
    let (text, line) = changed("link_width=\"16\"", "link_width=\"7\"");
    assert!(
        fault(&text).starts_with(&format!("line {line} of an NCCL topology: a PCIe link has a generation"))
    );
}

#[test]
fn values_that_are_no_values() {
    for (from, to, reason) in [
        ("numaid=\"0\"", "numaid=\"zero\"", "numaid=\"zero\" is no number that fits"),
        ("busid=\"0000:10:00.0\"", "busid=\"here\"", "busid=\"here\" is no PCI address"),
        ("class=\"0x060400\"", "class=\"bridge\"", "class=\"bridge\" is no PCI class"),
        ("vendor=\"0x10de\"", "vendor=\"0x10dead\"", "vendor=\"0x10dead\" is no number that fits"),
        ("target=\"0000:11:00.0\"", "target=\"there\"", "target=\"there\" is no PCI address"),
        ("guid=\"0xbeef00\"", "guid=\"beer\"", "guid=\"beer\" is no hexadecimal number"),
        ("speed=\"100000\"", "speed=\"fast\"", "speed=\"fast\" is no number that fits"),
        ("version=\"1\"", "version=\"3\"", "version 3 of the format is not known"),
    ] {
        let (text, line) = changed(from, to);
        assert_eq!(fault(&text), format!("line {line} of an NCCL topology: {reason}"));
    }
    assert_eq!(fault("<system version='1'/>"), "line 1 of an NCCL topology: there is no <cpu>");
}

#[test]
fn lines_of_the_text_form_that_are_none() {
    let head = "hardware x # a comment\n\nhost h\nnuma n on=h number=0\ngpu g on=h index=0 sm=80\n";
    machine(head);
    for (line, reason) in [
        ("gpu g on=h", "there are two nodes \"g\""),
        ("gpu i on=nowhere", "there is no node \"nowhere\" above this line"),
        ("gpu i index=-1", "index=\"-1\" is nothing that fits"),
        ("gpu i colour=red", "colour= is unknown or given twice"),
        ("gpu i vendor=10de", "vendor=\"10de\" is no hexadecimal number that fits"),
        ("gpu i described=maybe", "described=\"maybe\" is none of yes, no"),
        ("gpu i model=%zz", "model=\"%zz\" is nothing that fits"),
        ("robot r", "\"robot\" is no kind of node"),
        ("link n g rope", "\"rope\" is no kind of link"),
        ("link n g nvlink", "count= is missing"),
        ("link g n c2c count=1", "of this kind of link the first end is the one that stands first"),
        ("link n g pcie latency_ns=5000000000", "latency_ns=\"5000000000\" is nothing that fits"),
        ("hardware again", "\"hardware\" is no kind of node"),
        ("gpu", "not understood: gpu"),
    ] {
        assert_eq!(
            fault(&format!("{head}{line}\n")),
            format!("line 6 of a machine as text: {reason}"),
            "{line}"
        );
    }
}

#[test]
fn a_graph_of_a_gpu_that_the_job_does_not_have() {
    use consort_algorithms::hardware::exchange::Content;
    let graph = |gpu: &str| {
        format!(
            "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"1\" speedintra=\"20\" speedinter=\"20\" \
             typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"0\">\n<channel>\n<gpu dev=\"0x0\"/>\n<gpu dev=\"{gpu}\"/>\n</channel>\n</graph></graphs>"
        )
    };
    let machine = machine(&boxes::dgx_1());
    let check = |gpu: &str| match read(graph(gpu).as_bytes()).expect("it is right").content {
        Content::Graphs(graphs) => graphs.check(&machine),
        _ => panic!("it is a graph"),
    };
    assert_eq!(check("0x7"), Ok(()));
    let missing = check("0x9").expect_err("there are eight");
    assert!(
        missing.starts_with("channel 0 of graph 0 names GPU 9, which the machine does not have; use"),
        "{missing}"
    );
    let why = |text: String| read(text.as_bytes()).expect_err("it is wrong").to_string();
    assert!(why(graph("0x0")).starts_with("line 5 of an NCCL graph file: GPU 0 is in one channel twice"));
    assert!(
        why(graph("0x1").replace("pattern=\"4\"", "pattern=\"9\""))
            .contains("line 2 of an NCCL graph file: there is no pattern 9")
    );
    assert!(
        why(graph("0x1").replace("nchannels=\"1\"", "nchannels=\"2\""))
            .contains("nchannels is 2, and there are 1 channels")
    );
    assert!(why(graph("0x1").replace("NVL", "ROPE")).contains("typeintra=\"ROPE\" is no path"));
}

#[test]
fn a_file_within_the_limit_of_bytes_has_no_more_nodes_or_links_than_the_text_form() {
    let why = |text: String| read(text.as_bytes()).expect_err("it is too large").to_string();
    // 17 hosts of 256 domains would be joined by 554,880 links, each pair by one.
    let host = |host: u32, numas: u32| -> String {
        (0..numas).map(|numa| format!("<cpu host_hash=\"{host:#x}\" numaid=\"{numa}\"/>\n")).collect()
    };
    let system = |hosts: u32, numas: u32| -> String {
        format!(
            "<system version=\"1\">\n{}</system>",
            (0..hosts).map(|at| host(at, numas)).collect::<String>()
        )
    };
    let fault = why(system(17, 256));
    assert!(fault.contains("559232 links are more than the 524288 that a machine may have"), "{fault}");
    // The last line that was read: nothing was joined before the sum was known.
    assert!(fault.starts_with("line 4353 of "), "{fault}");
    let fault = why(system(1, 300));
    assert!(fault.starts_with("line 258 of ") && fault.contains("257 NUMA domains on one host"), "{fault}");
    let devices = (0..131_072u32).map(|_| "<pci/>").collect::<String>();
    let fault = why(format!("<system version=\"1\"><cpu>{devices}</cpu></system>"));
    assert!(fault.contains("131073 nodes are more than the 131072 that a machine may have"), "{fault}");

    // The text form has latencies of 32 bits, in nanoseconds.
    let port = "<cpu><nic><net name=\"p\" latency=\"4294968\"/></nic></cpu>";
    let fault = why(format!("<system version=\"1\">{port}</system>"));
    assert!(fault.contains("latency=\"4294968\" is no time in microseconds"), "{fault}");

    let (many, _) = read_hardware(system(1, 256).as_bytes()).expect("256 domains are one host's");
    assert_eq!(many.links().len(), 256 + 256 * 255 / 2);
    let boxes = vec![&many; 17];
    let fault = Hardware::compose(&boxes, Network::Rail).expect_err("too many links").to_string();
    assert!(fault.starts_with("559232 links are more than the 524288"), "{fault}");
    assert!(fault.ends_with("describe fewer hosts, or fewer devices of each"), "{fault}");
}
