// uPlot as a component: it follows the width of its place and the colours of the theme.
//
//   <Chart label="Loss" height={220} data={[steps, values]} options={{series: [{}, {label: "loss",
//     stroke: "accent"}], cursor: {sync: {key: "job-12"}}}} />
//
// `options` are uPlot's, with names of the style sheet for colours; it is made anew when `options`
// is another object, so keep it (useMemo). New `data` is only drawn. Charts whose cursors have one
// sync key share cursor and zoom. onReady(uplot) gets each uPlot that is made.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, repaint } from "../lib/theme.js";
import "./chart.css";

function painted(options, width, height) {
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const axis = {
    stroke: colour("muted"),
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { stroke: colour("grid"), width: 1 },
    font,
  };
  return {
    ...options,
    width,
    height,
    legend: { show: false, ...options.legend },
    axes: (options.axes ?? [{}, {}]).map((own) => ({ ...axis, ...own })),
    series: options.series.map((own, i) =>
      i === 0 ? own : { width: 1.5, ...own, stroke: colour(own.stroke ?? "accent") },
    ),
  };
}

export function Chart({ label, options, data, height = 220, onReady }) {
  const element = useRef();
  const plot = useRef();
  const painting = repaint.value;
  useEffect(() => {
    const own = new uPlot(painted(options, element.current.clientWidth, height), data, element.current);
    plot.current = own;
    onReady?.(own);
    const resized = new ResizeObserver(([{ contentRect }]) =>
      own.setSize({ width: Math.floor(contentRect.width), height }),
    );
    resized.observe(element.current);
    return () => {
      resized.disconnect();
      own.destroy();
    };
  }, [options, height, painting]);
  useEffect(() => {
    if (plot.current.data !== data) plot.current.setData(data);
  }, [data]);
  return <div class="chart" ref={element} role="img" aria-label={label} />;
}
