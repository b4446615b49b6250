//! fio: its command line in the guest, and its output.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;

use crate::figure::Latency;

/// A shell line that starts fio with almost no load.
pub(crate) const START: &str = "cd /tmp && fio --name=start --ioengine=null --size=4k --thread --output-format=json \
    --output=/tmp/out && cat /tmp/out";

/// The kind of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    RandomRead,
    RandomWrite,
    Read,
    Write,
}

impl Pattern {
    /// Returns fio's name of it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::RandomRead => "randread",
            Self::RandomWrite => "randwrite",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) pattern: Pattern,
    /// Size of a transfer in KiB.
    pub(crate) kib: u32,
    /// Number of threads, each with its own queue if there are enough.
    pub(crate) jobs: u32,
    /// Outstanding transfers of each thread.
    pub(crate) depth: u32,
}

impl Load {
    /// Returns the part of a figure's name.
    pub(crate) fn name(&self) -> String {
        let (pattern, kib, jobs, depth) = (self.pattern.word(), self.kib, self.jobs, self.depth);
        format!("{pattern}-{kib}k/{jobs}-jobs/depth-{depth}")
    }

    /// Returns a shell line that loads `disk` for `seconds` and prints one line of JSON.
    pub(crate) fn line(&self, disk: &str, seconds: u32) -> String {
        format!(
            "cd /tmp && fio --name=load --filename={disk} --direct=1 --ioengine=libaio --rw={} --bs={}k \
             --iodepth={} --numjobs={} --thread --group_reporting --time_based --runtime={seconds} --norandommap \
             --output-format=json --output=/tmp/out && tr -d '\\n' < /tmp/out",
            self.pattern.word(),
            self.kib,
            self.depth,
            self.jobs
        )
    }
}

/// The result of fio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FioResult {
    /// Transfers a second.
    pub(crate) iops: f64,
    /// Total number of transfers.
    pub(crate) transfers: f64,
    /// Latency from submission to completion.
    pub(crate) latency: Latency,
}

impl FioResult {
    /// Parses the output of [`Load::line`].
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let start = text.find('{').context("fio printed no JSON")?;
        let json = text.get(start..).unwrap_or_default();
        let output: Output = serde_json::from_str(json).context("fio printed other JSON")?;
        let job = output.jobs.into_iter().next().context("fio ran no job")?;
        let side = [job.read, job.write];
        let busy = side.into_iter().find(|side| side.total_ios > 0.0);
        let side = busy.context("fio made no transfer")?;
        let quantile = |name: &str| {
            let nanoseconds = side.clat_ns.percentile.get(name);
            let nanoseconds =
                nanoseconds.with_context(|| format!("fio tells no percentile {name}"))?;
            anyhow::Ok(nanoseconds / 1e3)
        };
        Ok(Self {
            iops: side.iops,
            transfers: side.total_ios,
            latency: Latency {
                p50: quantile("50.000000")?,
                p99: quantile("99.000000")?,
                p999: quantile("99.900000")?,
            },
        })
    }

    /// Returns the nanoseconds of each transfer, if all take `time`.
    pub(crate) fn share_ns(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e9 / self.transfers
    }
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Side,
    write: Side,
}

#[derive(Deserialize)]
struct Side {
    iops: f64,
    total_ios: f64,
    clat_ns: Latencies,
}

#[derive(Deserialize)]
struct Latencies {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load {
        pattern: Pattern::RandomRead,
        kib: 4,
        jobs: 2,
        depth: 32,
    };

    #[test]
    fn the_line_says_all_that_the_load_does() {
        assert_eq!(LOAD.name(), "randread-4k/2-jobs/depth-32");
        let line = LOAD.line("/dev/nvme0n1", 3);
        for words in [
            "--filename=/dev/nvme0n1 ",
            "--rw=randread --bs=4k --iodepth=32 --numjobs=2 ",
            "--runtime=3 ",
        ] {
            assert!(line.contains(words), "{line}");
        }
    }

    #[test]
    fn the_busy_side_is_read() {
        let idle = r#"{"iops":0,"total_ios":0,"clat_ns":{"min":0}}"#;
        let busy = r#"{"iops":1234.5,"total_ios":3700,"clat_ns":{"percentile":{"50.000000":25000,"99.000000":90000,"99.900000":200000}}}"#;
        let text = format!("fio: a note\n{{\"jobs\":[{{\"read\":{idle},\"write\":{busy}}}]}}");
        let outcome = FioResult::parse(&text).unwrap();
        assert_eq!((outcome.iops, outcome.transfers), (1234.5, 3700.0));
        assert_eq!(outcome.latency.p99, 90.0);
        assert_eq!(outcome.share_ns(Duration::from_millis(37)), 10_000.0);
        let none = format!("{{\"jobs\":[{{\"read\":{idle},\"write\":{idle}}}]}}");
        assert!(FioResult::parse(&none).is_err());
        assert!(FioResult::parse(&text.replace("99.900000", "99.95")).is_err());
        assert!(FioResult::parse("error").is_err());
    }
}
