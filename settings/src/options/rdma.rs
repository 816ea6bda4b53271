//! What is asked of RDMA: those of NCCL's variables for InfiniBand and RoCE that act here.
//!
//! Invariant: what is read is within the limits of the interface of verbs; as in NCCL, a number that is none counts as unset, and so
//! does a negative one where that means "by itself". Absent: which ports there are, and what is done with them.

use std::net::IpAddr;

use super::settings::bad;
use crate::environment::{Environment, integer, names};
use consort_types::error::{Error, Result};

const HCA: &str = "NCCL_IB_HCA";
const RANGE: &str = "NCCL_IB_ADDR_RANGE";
const FAMILY: &str = "NCCL_IB_ADDR_FAMILY";

/// What is asked of RDMA; nothing by default.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Rdma {
    /// The ports that may be used.
    pub ports: Adapters,
    /// The entry of a port's table of addresses.
    pub gid_index: Option<u8>,
    /// Whether addresses are of IPv6.
    pub is_ipv6: Option<bool>,
    /// The first bits of an address, and their number.
    pub range: Option<(IpAddr, u8)>,
    /// The version of RoCE, 1 or 2.
    pub roce_version: Option<u8>,
    /// The service level, 0 to 15.
    pub service_level: Option<u8>,
    /// The traffic class.
    pub traffic_class: Option<u8>,
    /// The place of a partition's key in the port's table.
    pub partition: Option<u16>,
    /// How long a packet may go unanswered, as a power of two of 4.096 µs, 1 to 31.
    pub timeout: Option<u8>,
    /// How often a packet is sent again, 0 to 7.
    pub retries: Option<u8>,
    /// Queue pairs of a connection, 1 to 128.
    pub queue_pairs: Option<u16>,
    /// Whether writes to memory may pass each other on the bus: 0 never, 1 they shall, 2 where it can be had.
    pub relaxed_ordering: Option<u8>,
    /// Memory of devices is not reached by DMA buffers.
    pub no_dma_buffers: bool,
    /// How far away a device may be whose memory is reached directly: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 SYS.
    pub device_level: Option<u8>,
    /// Memory of devices is not read directly, to be sent.
    pub no_device_reads: bool,
}

/// The ports of adapters that `NCCL_IB_HCA` names: by prefixes of devices, or whole names behind `=`; behind `^` all others. A name may
/// have a port behind a colon.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Adapters {
    text: String,
    exclude: bool,
    exact: bool,
    names: Vec<(String, Option<u8>)>,
}

impl Adapters {
    fn read(text: &str) -> Result<Self> {
        const RULE: &str = "names of devices with commas between them, each with a port behind a colon or without, as mlx5_0:1,mlx5_2; \
                            ^ in front excludes them, and = in front says that names are whole";
        let trimmed = text.trim();
        let exclude = trimmed.starts_with('^');
        let rest = trimmed.strip_prefix('^').unwrap_or(trimmed);
        let exact = rest.starts_with('=');
        let (_, listed) = names(rest.strip_prefix('=').unwrap_or(rest));
        let name = |name: &str| {
            let mut fields = name.split(':').map(str::trim);
            let device = fields.next().filter(|device| !device.is_empty() && !device.contains(['^', '=']))?;
            let port = fields.next();
            // A rail and a plane may follow; both are numbers that name no port.
            let is_sound = fields.clone().count() <= 2 && fields.all(|field| field.parse::<u32>().is_ok());
            let port = match port {
                Some(port) => Some(port.parse::<u8>().ok().filter(|port| *port > 0)?),
                None => None,
            };
            is_sound.then(|| (device.to_owned(), port))
        };
        let names = listed.map(name).collect::<Option<Vec<_>>>().ok_or_else(|| bad(HCA, text, RULE))?;
        // Nothing is named, so nothing is asked for.
        let text = if names.is_empty() { String::new() } else { trimmed.to_owned() };
        Ok(Adapters { text, exclude, exact, names })
    }

    /// Whether this port of this device may be used.
    pub fn has(&self, device: &str, port: u8) -> bool {
        let is_named = |(name, of): &(String, Option<u8>)| {
            let is_device = if self.exact { device == name } else { device.starts_with(name.as_str()) };
            is_device && of.is_none_or(|of| of == port)
        };
        self.names.is_empty() || self.names.iter().any(is_named) != self.exclude
    }

    /// The variable's text; empty where it names nothing.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// `10.0.0.0/8`: an address, and how many of its first bits count; all where none are said.
fn range(text: &str) -> Result<Option<(IpAddr, u8)>> {
    const RULE: &str = "an address with the number of its first bits that count, as 10.1.0.0/16 or fd00::/8";
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Ok(None);
    }
    let (address, bits) =
        trimmed.split_once('/').map_or((trimmed, None), |(address, bits)| (address, Some(bits)));
    let read = || {
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok()).filter(|bits| *bits <= most)?;
        Some((address, bits))
    };
    read().map(Some).ok_or_else(|| bad(RANGE, text, RULE))
}

/// A number of the variable `name` from `least` to `most`. Below `least` it counts as unset where `-1` means "by itself".
fn number<T: TryFrom<i64>>(
    environment: &Environment<'_>,
    name: &'static str,
    (least, most): (i64, i64),
    rule: &str,
) -> Result<Option<T>> {
    let Some((text, _)) = environment.text(name) else { return Ok(None) };
    // What leaves it open in NCCL.
    let open = |number: &i64| *number == -1 && least == 0;
    let Some(number) = integer(&text).filter(|number| !open(number)) else { return Ok(None) };
    let within = Some(number).filter(|number| (least..=most).contains(number));
    let value = within.and_then(|number| T::try_from(number).ok());
    value.map(Some).ok_or_else(|| bad(name, &text, rule))
}

/// A level by its name or by its number of before NCCL 2.5. As there, a text that is neither counts as not said.
fn level(text: &str) -> Option<u8> {
    match text.trim() {
        "LOC" | "NVL" | "NVB" | "C2C" => Some(0),
        "PIX" => Some(1),
        "PXB" | "P2C" | "PXN" => Some(2),
        "PHB" => Some(3),
        "SYS" => Some(4),
        text => integer(text).filter(|number| *number >= 0).map(|number| number.min(4) as u8),
    }
}

impl Rdma {
    /// What the environment asks for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for values that no adapter can be given, and for `NCCL_IB_DISABLE=1`, which leaves RDMA no way.
    pub fn asked(environment: &Environment<'_>) -> Result<Self> {
        if environment.integer("NCCL_IB_DISABLE").is_some_and(|number| number != 0) {
            return Err(Error::invalid(
                "the transport is verbs (CONSORT_TRANSPORT), and NCCL_IB_DISABLE forbids RDMA",
                "unset one of them: without CONSORT_TRANSPORT=verbs there is no RDMA in any case",
            ));
        }
        let text = |name| environment.text(name).map(|(text, _)| text);
        let is_ipv6 = text(FAMILY).and_then(|text| match text.trim() {
            "AF_INET" => Some(false),
            "AF_INET6" => Some(true),
            // As in NCCL, any other text leaves it open.
            _ => None,
        });
        Ok(Rdma {
            ports: Adapters::read(&text(HCA).unwrap_or_default())?,
            gid_index: number(environment, "NCCL_IB_GID_INDEX", (0, 255), "a number from 0 to 255")?,
            is_ipv6,
            range: range(&text(RANGE).unwrap_or_default())?,
            roce_version: number(environment, "NCCL_IB_ROCE_VERSION_NUM", (1, 2), "1 or 2")?,
            service_level: number(environment, "NCCL_IB_SL", (0, 15), "a number from 0 to 15")?,
            traffic_class: number(environment, "NCCL_IB_TC", (0, 255), "a number from 0 to 255")?,
            partition: number(environment, "NCCL_IB_PKEY", (0, 65535), "a number from 0 to 65535")?,
            timeout: number(environment, "NCCL_IB_TIMEOUT", (1, 31), "a number from 1 to 31")?,
            retries: number(environment, "NCCL_IB_RETRY_CNT", (0, 7), "a number from 0 to 7")?,
            queue_pairs: number(
                environment,
                "NCCL_IB_QPS_PER_CONNECTION",
                (1, 128),
                "a number from 1 to 128",
            )?,
            no_dma_buffers: environment.integer("NCCL_DMABUF_ENABLE") == Some(0),
            device_level: text("NCCL_NET_GDR_LEVEL")
                .or_else(|| text("NCCL_IB_GDR_LEVEL"))
                .and_then(|text| level(&text)),
            no_device_reads: environment.integer("NCCL_NET_GDR_READ") == Some(0),
            relaxed_ordering: number(environment, "NCCL_IB_PCI_RELAXED_ORDERING", (0, 2), "0, 1 or 2")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(set: &[(&str, &str)]) -> Result<Rdma> {
        let lookup =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        Rdma::asked(&Environment::from_lookup(lookup))
    }

    fn ports(text: &str) -> Vec<String> {
        let adapters = asked(&[(HCA, text)]).expect(text).ports;
        let all = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rocep1", 1)];
        all.iter()
            .filter(|(device, port)| adapters.has(device, *port))
            .map(|(device, port)| format!("{device}:{port}"))
            .collect()
    }

    #[test]
    fn adapters_are_named_as_in_nccl() {
        let all = ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1", "rocep1:1"];
        assert_eq!(ports(""), all);
        assert_eq!(ports(" , "), all);
        assert_eq!(ports("mlx5"), all[..4]);
        assert_eq!(ports("mlx5_1"), all[1..4]);
        assert_eq!(ports("=mlx5_1"), all[1..3]);
        assert_eq!(ports("mlx5_1:1"), ["mlx5_1:1", "mlx5_10:1"]);
        assert_eq!(ports("=mlx5_1:2,rocep1"), ["mlx5_1:2", "rocep1:1"]);
        assert_eq!(ports("^mlx5_1"), ["mlx5_0:1", "rocep1:1"]);
        assert_eq!(ports("^=mlx5_1:1"), ["mlx5_0:1", "mlx5_1:2", "mlx5_10:1", "rocep1:1"]);
        assert_eq!(ports("mlx5_0:1:3:0"), ["mlx5_0:1"], "a rail and a plane");
        assert!(ports("=mlx5").is_empty());
        for text in
            ["mlx5_0:", "mlx5_0:x", "mlx5_0:0", "mlx5_0:1:a", "mlx5_0:1:2:3:4", "mlx5_0,^mlx5_1", ":1"]
        {
            let error = asked(&[(HCA, text)]).expect_err(text).to_string();
            assert!(
                error.contains(HCA) && error.contains(text) && error.contains("mlx5_0:1,mlx5_2"),
                "{error}"
            );
        }
    }

    #[test]
    fn numbers_are_within_what_adapters_take() {
        let all = [
            ("NCCL_IB_GID_INDEX", "3"),
            ("NCCL_IB_ROCE_VERSION_NUM", "1"),
            ("NCCL_IB_SL", "5"),
            ("NCCL_IB_TC", "0x6a"),
            ("NCCL_IB_PKEY", "2"),
            ("NCCL_IB_TIMEOUT", "22"),
            ("NCCL_IB_RETRY_CNT", "0"),
            ("NCCL_IB_QPS_PER_CONNECTION", "4"),
            ("NCCL_IB_PCI_RELAXED_ORDERING", "1"),
        ];
        let rdma = asked(&all).expect("sound");
        let addresses = (rdma.gid_index, rdma.roce_version, rdma.partition);
        let travel = (rdma.service_level, rdma.traffic_class, rdma.timeout, rdma.retries, rdma.queue_pairs);
        assert_eq!(addresses, (Some(3), Some(1), Some(2)));
        assert_eq!(rdma.relaxed_ordering, Some(1));
        assert_eq!(travel, (Some(5), Some(106), Some(22), Some(0), Some(4)));
        // What NCCL takes for nothing.
        let open = [
            ("NCCL_IB_GID_INDEX", "-1"),
            ("NCCL_IB_SL", "-1"),
            ("NCCL_IB_TC", "no"),
            ("NCCL_IB_TIMEOUT", ""),
        ];
        assert_eq!(asked(&open).expect("unset"), Rdma::default());
        for (name, text) in [
            ("NCCL_IB_GID_INDEX", "256"),
            ("NCCL_IB_ROCE_VERSION_NUM", "3"),
            ("NCCL_IB_SL", "16"),
            ("NCCL_IB_TC", "-2"),
            ("NCCL_IB_PKEY", "65536"),
            ("NCCL_IB_TIMEOUT", "0"),
            ("NCCL_IB_TIMEOUT", "-1"),
            ("NCCL_IB_RETRY_CNT", "8"),
            ("NCCL_IB_QPS_PER_CONNECTION", "129"),
            ("NCCL_IB_PCI_RELAXED_ORDERING", "3"),
        ] {
            let error = asked(&[(name, text)]).expect_err(name);
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
            let error = error.to_string();
            assert!(error.contains(name) && error.contains(text) && error.contains("it must be"), "{error}");
        }
    }

    #[test]
    fn ways_to_memory_of_devices_are_limited_as_in_nccl() {
        let ways = |set: &[(&str, &str)]| {
            let rdma = asked(set).expect("sound");
            (rdma.no_dma_buffers, rdma.device_level, rdma.no_device_reads)
        };
        assert_eq!(ways(&[]), (false, None, false));
        assert_eq!(ways(&[("NCCL_DMABUF_ENABLE", "0"), ("NCCL_NET_GDR_READ", "0")]), (true, None, true));
        for text in ["1", "-2", "no"] {
            let open = [("NCCL_DMABUF_ENABLE", text), ("NCCL_NET_GDR_READ", text)];
            assert_eq!(ways(&open), (false, None, false), "{text}");
        }
        let levels = [
            ("LOC", Some(0)),
            ("PIX", Some(1)),
            ("PXB", Some(2)),
            ("PHB", Some(3)),
            ("SYS", Some(4)),
            ("NVL", Some(0)),
            ("P2C", Some(2)),
            ("0", Some(0)),
            ("3", Some(3)),
            ("9", Some(4)),
            ("-1", None),
            ("pix", None),
            ("", None),
        ];
        for (text, expected) in levels {
            assert_eq!(ways(&[("NCCL_NET_GDR_LEVEL", text)]).1, expected, "{text}");
        }
        assert_eq!(ways(&[("NCCL_IB_GDR_LEVEL", "PHB")]).1, Some(3), "the name of before NCCL 2.4");
        assert_eq!(ways(&[("NCCL_IB_GDR_LEVEL", "PHB"), ("NCCL_NET_GDR_LEVEL", "PIX")]).1, Some(1));
    }

    #[test]
    fn addresses_are_asked_for_by_family_and_range() {
        let range = |text| asked(&[(RANGE, text)]).map(|rdma| rdma.range);
        let v4 = |bits| Some(("10.1.0.0".parse().expect("an address"), bits));
        assert_eq!(range("10.1.0.0/16").expect("a range"), v4(16));
        assert_eq!(range(" 10.1.0.0 ").expect("a range"), v4(32));
        assert_eq!(range("fd00::/8").expect("a range").expect("a range").1, 8);
        assert_eq!(range("").expect("unset"), None);
        for text in ["10.1.0.0/33", "10.1.0/16", "ten", "10.1.0.0/", "::/129"] {
            let error = range(text).expect_err(text).to_string();
            assert!(
                error.contains(RANGE) && error.contains(text) && error.contains("10.1.0.0/16"),
                "{error}"
            );
        }
        let family = |text| asked(&[(FAMILY, text)]).expect("a family").is_ipv6;
        assert_eq!([family("AF_INET"), family("AF_INET6"), family("AF_IB")], [Some(false), Some(true), None]);
    }

    #[test]
    fn rdma_that_is_demanded_and_forbidden_is_refused() {
        let error = asked(&[("NCCL_IB_DISABLE", "1")]).expect_err("forbidden").to_string();
        assert!(error.contains("NCCL_IB_DISABLE") && error.contains("CONSORT_TRANSPORT"), "{error}");
        assert_eq!(asked(&[("NCCL_IB_DISABLE", "0")]).expect("allowed"), Rdma::default());
    }
}
