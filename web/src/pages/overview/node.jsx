// One node: its slots, and who it is.
import { bytes, count } from "../../lib/format.js";
import { Meter } from "../../ui/meter.jsx";
import { Since } from "../../ui/time.jsx";

function Slots({ name, used, total }) {
  const known = used !== undefined;
  const text = known
    ? `${count(used)} of ${count(total)} in use, ${count(Math.max(0, total - used))} free`
    : count(total);
  return (
    <div class="slots">
      <span class="muted">{name}</span>
      {known && <Meter label={name} used={used} total={total} text={text} />}
      <span class="number">{text}</span>
    </div>
  );
}

function Facts({ node: { gpu_slots, load, resources, version } }) {
  return (
    <ul class="node-facts muted number">
      {resources.memory_bytes && <li>{bytes(resources.memory_bytes)} of memory</li>}
      {resources.cores && <li>{count(resources.cores)} cores</li>}
      {gpu_slots === 0 && <li>no GPU</li>}
      <li>dllmd {version}</li>
      {load && (
        <li>
          up for <Since time={load.started_at} />
        </li>
      )}
    </ul>
  );
}

export function Node({ node }) {
  const { cpu_slots, gpu_slots, draining, load, name } = node;
  return (
    <section class="node" aria-label={`Node ${name}`}>
      <div class="node-name">
        <strong>{name}</strong>
        <span class="light" data-tone={draining ? "warn" : "good"}>
          {draining ? "draining: takes no new work" : "takes work"}
        </span>
      </div>
      <Slots name="CPU slots" used={load?.cpu_slots_in_use} total={cpu_slots} />
      {gpu_slots > 0 && <Slots name="GPUs" used={load?.gpu_slots_in_use} total={gpu_slots} />}
      <Facts node={node} />
    </section>
  );
}
