//! One output of a command in a text, and the machine that several of them add up to.
//!
//! A text may show two machines, or one in two states: a mail and its answer, before and after a
//! change. An output that contradicts earlier ones about which device is where is left out, since
//! a mixture would be a machine that does not exist.

use std::collections::BTreeMap;
use std::mem;

use crate::address::Address;
use crate::machine::{Acs, Conflict, Function, Machine, Place};

/// The functions that one output shows.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// The line of the text at which it begins.
    pub(crate) line: usize,
    /// Its functions.
    pub(crate) functions: BTreeMap<Address, Function>,
    /// The facts that it lacks, as sentences.
    pub(crate) gaps: Vec<String>,
}

impl Machine {
    /// Adds outputs in the order of their lines: of two values of a register, the later counts.
    pub(crate) fn add_outputs(&mut self, mut outputs: Vec<Output>) {
        outputs.sort_by_key(|output| output.line);
        for output in outputs {
            if !self.has_contradiction(&output) {
                self.add(output);
            }
        }
    }

    /// Adds what `output` shows and the machine does not know yet.
    pub(crate) fn add_earlier(&mut self, output: Output) {
        if self.has_contradiction(&output) {
            return;
        }
        for (address, function) in output.functions {
            self.functions.entry(address).or_default().fill_in(function);
        }
    }

    fn add(&mut self, output: Output) {
        for (address, mut function) in output.functions {
            let known = self.functions.entry(address).or_default();
            if let (Acs::Control(before), Acs::Control(now)) = (known.acs, function.acs) {
                if before != now {
                    self.conflicts.push(Conflict::Acs(address));
                }
            }
            function.fill_in(mem::take(known));
            *known = function;
        }
        self.gaps.extend(output.gaps);
    }

    /// Returns `true` if `output` shows another device at a known address, and records that.
    fn has_contradiction(&mut self, output: &Output) -> bool {
        let differs = |(address, function): &(&Address, &Function)| {
            let known = self.functions.get(address);
            known.is_some_and(|known| known.is_another_than(function))
        };
        let Some((address, _)) = output.functions.iter().find(differs) else {
            return false;
        };
        self.conflicts.push(Conflict::Device(*address));
        true
    }
}

impl Function {
    /// Returns `true` if both cannot be the same device at the same place.
    fn is_another_than(&self, other: &Self) -> bool {
        let differ = |own: Option<u32>, other: Option<u32>| {
            own.zip(other).is_some_and(|(own, other)| own != other)
        };
        let id = |function: &Self| {
            function
                .id
                .map(|id| u32::from(id.vendor) << 16 | u32::from(id.device))
        };
        // Firmware that has not numbered a bridge's buses leaves zeros.
        let bus = |function: &Self| {
            let (first, _) = function.buses.filter(|(first, _)| *first != 0)?;
            Some(u32::from(first))
        };
        let vendor = |function: &Self| {
            let word = function.description.split(' ').next()?;
            (!word.is_empty()).then(|| word.to_owned())
        };
        let are_ids_known = self.id.is_some() && other.id.is_some();
        differ(id(self), id(other))
            || differ(bus(self), bus(other))
            || !are_ids_known
                && vendor(self)
                    .zip(vendor(other))
                    .is_some_and(|(own, other)| own != other)
    }

    /// Takes every fact that it lacks from `other`.
    fn fill_in(&mut self, other: Self) {
        // Naming all fields here keeps a new one from being left out below.
        let Self {
            place,
            id,
            class,
            description,
            port_type,
            has_slot,
            buses,
            acs,
            bars,
            decodes_memory,
            masters_bus,
            link,
            max_payload,
            relaxed_ordering,
            dma_bits,
            numa_node,
            root_bus,
            iommu_group,
            iommu,
            driver,
            names,
            p2pmem,
        } = other;
        macro_rules! fill_in {
            ($($field:ident),*) => { $(self.$field = self.$field.take().or($field);)* };
        }
        fill_in!(
            id,
            class,
            port_type,
            has_slot,
            buses,
            decodes_memory,
            masters_bus,
            link
        );
        fill_in!(
            max_payload,
            relaxed_ordering,
            dma_bits,
            numa_node,
            iommu_group,
            iommu,
            driver
        );
        fill_in!(p2pmem, root_bus);
        if self.place == Place::Unknown {
            self.place = place;
        }
        if self.acs == Acs::Unknown {
            self.acs = acs;
        }
        // A tree's descriptions may be cut.
        if self.description.len() < description.len() {
            self.description = description;
        }
        if self.names.is_empty() {
            self.names = names;
        }
        if self.bars.is_empty() {
            self.bars = bars;
            return;
        }
        for bar in &mut self.bars {
            let same = bars.iter().find(|other| other.index == bar.index);
            bar.size = bar.size.or(same.and_then(|same| same.size));
            bar.largest = bar.largest.or(same.and_then(|same| same.largest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Conflict;
    use crate::samples::{DIRECT, REDIRECTS, at, machine, two_sockets};
    use crate::{html, text};

    #[test]
    fn later_output_keeps_what_it_does_not_show() {
        let tree = "-[0000:17]-+-00.0-[18-1b]--\n           \\-01.0-[1c]----00.0  Samsung\n";
        let machine = machine(&(two_sockets(DIRECT) + tree));
        let port = machine.function(at("17:01.0")).unwrap();
        assert_eq!(port.has_slot, Some(true));
    }

    #[test]
    fn two_states_of_a_port_are_a_conflict() {
        let text = two_sockets(REDIRECTS) + &two_sockets(DIRECT);
        let conflicts = machine(&text).conflicts;
        assert_eq!(
            conflicts,
            ["19:08.0", "19:09.0"].map(|port| Conflict::Acs(at(port)))
        );
        assert_eq!(
            conflicts[0].to_string(),
            "the ACS of 0000:19:08.0 differs between two outputs; the last one counts"
        );
    }

    #[test]
    fn conflict_and_gap_are_shown_apart() {
        let machine = machine(&(two_sockets(REDIRECTS) + &two_sockets(DIRECT)));
        let matrix = machine.matrix(false);
        let sentence = machine.conflicts[0].to_string();
        assert!(matrix.conflicts.contains(&sentence) && !matrix.gaps.contains(&sentence));
        let text = text::matrix(&machine, &matrix, &[], text::WIDTH);
        assert!(
            text.contains(&format!("\n  conflict {sentence}\n")),
            "{text}"
        );
        let page = html::page_of(&machine);
        let list = format!("<p><b>Conflicts in the source</b></p><ul><li>{sentence}</li>");
        assert!(page.contains(&list), "{page}");
    }
}
