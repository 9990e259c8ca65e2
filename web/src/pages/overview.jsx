// What runs, what waits and for what, what failed lately and why, what the node has; and all jobs.
import { useLive } from "../lib/poll.js";
import { Notice } from "../ui/notice.jsx";
import { JobList } from "./overview/list.jsx";
import { Node } from "./overview/node.jsx";
import { Failed, Running, Waiting } from "./overview/now.jsx";
import { Welcome } from "./overview/welcome.jsx";
import "./overview/overview.css";

export function Overview() {
  const nodes = useLive("/v1/nodes");
  const active = useLive("/v1/jobs?state=starting,running,restarting&limit=50");
  const waiting = useLive("/v1/jobs?state=queued,preparing,paused&limit=50");
  const failed = useLive("/v1/jobs?state=failed&limit=5", { every_s: 5 });
  const newest = useLive("/v1/jobs?limit=1", { every_s: 5 });
  const { problem } = [active, waiting, failed, newest, nodes].find((live) => live.problem) ?? {};
  const empty = newest.value?.jobs.length === 0;
  return (
    <>
      <h1 tabIndex={-1}>Overview</h1>
      {problem && <Notice tone="bad">{problem.message}</Notice>}
      {nodes.value?.nodes.map((node) => (
        <Node node={node} key={node.id} />
      ))}
      {empty && <Welcome />}
      {active.value && !empty && (
        <Running jobs={active.value.jobs} more={active.value.next_cursor !== null} />
      )}
      {waiting.value?.jobs.length > 0 && (
        <Waiting
          jobs={waiting.value.jobs}
          more={waiting.value.next_cursor !== null}
          nodes={nodes.value?.nodes}
        />
      )}
      {failed.value?.jobs.length > 0 && <Failed jobs={failed.value.jobs} />}
      {newest.value && !empty && <JobList />}
    </>
  );
}
