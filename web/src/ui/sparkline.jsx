// A small curve without axes, beside the number that it leads to.
import "./sparkline.css";

const WIDTH = 120;
const HEIGHT = 32;

export function Sparkline({ label, values }) {
  const known = values.filter(Number.isFinite);
  if (known.length < 2) return <span class="sparkline" />;
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const points = values
    .map((value, i) => [
      (i / (values.length - 1)) * (WIDTH - 4) + 2,
      HEIGHT - 2 - ((value - low) / span) * (HEIGHT - 4),
    ])
    .filter(([, y]) => Number.isFinite(y));
  const [x, y] = points.at(-1);
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
      <polyline points={points.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" ")} />
      <circle cx={x} cy={y} r="2" />
    </svg>
  );
}
