// Exact figures, under names that say their unit; what does not apply is null. Tested by
// tests/tools/explain.test.
#include "tools/explain/json.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include "tools/explain/card.h"

namespace planc {
namespace {

namespace json = llvm::json;

json::Array words(const Words& list) {
  json::Array array;
  for (const std::string& word : list) array.push_back(word);
  return array;
}

json::Value secondsOrNull(double seconds) {
  return seconds > 0 ? json::Value(seconds) : json::Value(nullptr);
}

json::Value clusterJson(const Cluster& cluster) {
  if (!cluster.known()) return nullptr;
  json::Array levels;
  for (const ClusterLevel& level : cluster.levels)
    levels.push_back(json::Object{{"name", level.name},
                                  {"count", level.count},
                                  {"bytes_per_second", secondsOrNull(level.link())},
                                  {"latency_seconds", secondsOrNull(level.latency())}});
  json::Object rates;
  for (const auto& [key, value] : cluster.figures)
    if (key != "memory" && key != "hbm") rates[key] = cluster.figures.number(key);
  json::Value memory = nullptr;
  if (cluster.memory() > 0) memory = cluster.memory();
  return json::Object{{"name", cluster.name},
                      {"device", cluster.device},
                      {"device_bytes", std::move(memory)},
                      {"device_bytes_per_second", secondsOrNull(cluster.hbm())},
                      {"device_flops_per_second", std::move(rates)},
                      {"levels", std::move(levels)}};
}

json::Object memoryJson(const MemoryBill& bill) {
  json::Array saved, largest;
  for (const SavedChunk& chunk : bill.saved)
    saved.push_back(json::Object{
        {"chunk", chunk.chunk}, {"microbatch_bytes", chunk.bytes}, {"in_flight", chunk.flights}});
  for (const HeldValue& held : bill.largest)
    largest.push_back(
        json::Object{{"name", held.name}, {"kind", held.kind}, {"bytes", held.bytes}});
  return json::Object{{"arena_bytes", bill.arena},         {"weights_bytes", bill.weights},
                      {"gradients_bytes", bill.gradients}, {"optimizer_bytes", bill.optimizer},
                      {"inputs_bytes", bill.inputs},       {"activations_bytes", bill.activations},
                      {"messages_bytes", bill.messages},   {"workspace_bytes", bill.workspace},
                      {"gaps_bytes", bill.gaps},           {"saved", std::move(saved)},
                      {"largest", std::move(largest)}};
}

json::Object talkJson(const Talk& talk, const Cluster& cluster) {
  json::Value level = nullptr;
  if (talk.reach.level < cluster.levels.size()) level = cluster.levels[talk.reach.level].name;
  return json::Object{{"axes", words(talk.axes)},
                      {"op", info(talk.kind).text},
                      {"calls", talk.calls},
                      {"bytes", talk.bytes},
                      {"least_bytes", talk.leastBytes},
                      {"bound", talk.isBound},
                      {"even_bytes", talk.evenBytes},
                      {"level", std::move(level)},
                      {"seconds", secondsOrNull(talk.seconds)},
                      {"hidden_seconds", talk.seconds > 0 ? json::Value(talk.hidden) : nullptr}};
}

json::Object stageJson(const StageBill& stage, const Cluster& cluster) {
  bool isTimed = stage.time.compute > 0 || stage.wireSeconds() > 0;
  json::Object where;
  for (const auto& [axis, at] : stage.program->where) where[axis] = at;
  json::Array talks;
  for (const Talk& talk : stage.talks) talks.push_back(talkJson(talk, cluster));
  return json::Object{
      {"where", std::move(where)},
      {"ranks", stage.ranks},
      {"layers", stage.layers},
      {"parameters", stage.parameters},
      {"activations_in_flight", stage.inFlight},
      {"memory", memoryJson(stage.memory)},
      {"talks", std::move(talks)},
      {"flops", stage.work.flops},
      {"other_flops", stage.work.otherFlops},
      {"again_flops", stage.work.again},
      {"memory_traffic_bytes", stage.work.memoryBytes},
      {"flops_per_byte", stage.work.intensity()},
      {"compute_seconds", secondsOrNull(stage.time.compute)},
      {"exposed_seconds", isTimed ? json::Value(stage.time.exposed) : json::Value(nullptr)}};
}

json::Value pipelineJson(const Report& report) {
  if (!report.pipeline) return nullptr;
  const Stages& stages = *report.pipeline;
  const WorkCosts& costs = report.costs;
  Timeline timeline = stages.timeline(costs);
  std::optional<double> theory = stages.idleByTheory(costs);
  const PipeSchedule& schedule = stages.schedule;
  json::Array list, chunks;
  for (const Stage& stage : stages.list)
    list.push_back(json::Object{{"layers", stage.layers},
                                {"parameters", stage.parameters},
                                {"activations_in_flight", stage.inFlight},
                                {"arena_bytes", stage.program->arenaBytes},
                                {"largest_value", stage.largest},
                                {"largest_value_bytes", stage.largestBytes}});
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk)
    chunks.push_back(
        json::Object{{"stage", schedule.stageOf[chunk]}, {"does", stages.chunks[chunk]}});
  json::Value share = nullptr;
  if (theory) share = stages.shareOf(*theory, costs);
  return json::Object{
      {"axis", stages.pipeline->axis},
      {"schedule", stages.pipeline->schedule},
      {"microbatches", schedule.microbatches},
      {"costs", json::Array{costs.forward, costs.inputGradient, costs.weightGradient}},
      {"idle_share", timeline.bubble()},
      {"idle_share_by_theory", std::move(share)},
      {"parameters", stages.parameters},
      {"chunks", std::move(chunks)},
      {"stages", std::move(list)}};
}

json::Object placingJson(const Placing& placing, const Cluster& cluster) {
  json::Object bytes;
  for (size_t i = 0; i < placing.bytes.size(); ++i)
    bytes[cluster.levels[i].name] = placing.bytes[i];
  return json::Object{
      {"axes", words(placing.axes)}, {"seconds", placing.seconds}, {"bytes", std::move(bytes)}};
}

json::Value placementJson(const Report& report) {
  if (!report.placement) return nullptr;
  const Placement& placement = *report.placement;
  const Cluster& cluster = report.cluster();
  auto maybe = [&](const std::optional<Placing>& placing) {
    return placing ? json::Value(placingJson(*placing, cluster)) : json::Value(nullptr);
  };
  json::Array across;
  for (const Across& a : placement.across) {
    json::Object placing = placingJson(a.placing, cluster);
    placing["axis"] = a.axis;
    across.push_back(std::move(placing));
  }
  return json::Object{{"chosen", placingJson(placement.chosen, cluster)},
                      {"written", placingJson(placement.written, cluster)},
                      {"runner_up", maybe(placement.runnerUp)},
                      {"without_place", maybe(placement.unbound)},
                      {"across", std::move(across)}};
}

json::Object changeJson(const Change& change) {
  return json::Object{{"statements", words(change.statements)},
                      {"arguments", words(change.arguments)},
                      {"ranks", change.ranks},
                      {"arena_bytes", change.arena},
                      {"flops", change.flops},
                      {"seconds", secondsOrNull(change.seconds)}};
}

json::Array ceilingsJson(const Report& report) {
  json::Array list;
  for (const Ceiling& ceiling : report.ceilings) {
    json::Object made{{"axis", ceiling.axis}, {"ranks", ceiling.ranks}, {"next", ceiling.next}};
    bool isLegal = ceiling.why.empty();
    made["why_not"] = isLegal ? json::Value(nullptr) : json::Value(ceiling.why);
    made["arena_bytes"] = isLegal ? json::Value(ceiling.arena) : json::Value(nullptr);
    made["bytes"] = isLegal ? json::Value(ceiling.bytesSent) : json::Value(nullptr);
    made["flops"] = isLegal ? json::Value(ceiling.flops) : json::Value(nullptr);
    made["idle_share"] = isLegal ? json::Value(ceiling.bubble) : json::Value(nullptr);
    made["seconds"] = secondsOrNull(ceiling.seconds);
    made["beyond_cluster"] = ceiling.isBeyondCluster;
    list.push_back(std::move(made));
  }
  return list;
}

json::Array attentionJson(const Report& report) {
  json::Array list;
  for (const DividedAttention& a : report.attention)
    list.push_back(json::Object{{"dim", a.seq},
                                {"axes", a.axes},
                                {"method", a.method},
                                {"zigzag", a.isZigzag},
                                {"tokens", a.tokens},
                                {"queries", a.queries},
                                {"keys", a.keys},
                                {"pairs_most", a.mostPairs},
                                {"pairs_mean", a.meanPairs}});
  return list;
}

json::Array expertWorkJson(const Report& report) {
  json::Array list;
  for (const ExpertRows& rows : report.experts)
    list.push_back(json::Object{{"dim", rows.expert},
                                {"axes", words(rows.axes)},
                                {"experts", rows.experts},
                                {"own", rows.own},
                                {"rows_even", rows.even},
                                {"rows_most", rows.most},
                                {"bound", rows.bound()}});
  return list;
}

json::Array expertsJson(const Report& report) {
  json::Array list;
  for (const SentRows& rows : report.rows)
    list.push_back(json::Object{{"dim", rows.expert},
                                {"axes", rows.axes},
                                {"experts", rows.experts},
                                {"own", rows.own},
                                {"rows_packed", rows.packed},
                                {"rows_room", rows.room}});
  return list;
}

std::string printed(json::Object root) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::formatv("{0:2}\n", json::Value(std::move(root)));
  return text;
}

}  // namespace

std::string explainJson(const Report& report) {
  const Cluster& cluster = report.cluster();
  json::Array grid, stages;
  for (const GridAxis& axis : report.planx->grid().axes)
    grid.push_back(json::Object{
        {"axis", axis.name}, {"ranks", axis.size}, {"of", axis.of.empty() ? axis.name : axis.of}});
  for (const StageBill& stage : report.stages) stages.push_back(stageJson(stage, cluster));
  json::Array changes;
  for (const Change& change : report.changes) changes.push_back(changeJson(change));
  json::Value fits = nullptr;
  if (auto known = report.fits()) fits = *known;
  double peak = report.peakRate() * double(report.planx->grid().ranks());
  bool isTimed = report.time.seconds > 0;
  json::Object root{{"schema", kExplainSchema},
                    {"plan", report.plan},
                    {"cluster", clusterJson(cluster)},
                    {"grid", std::move(grid)},
                    {"ranks", report.planx->grid().ranks()},
                    {"parameters", report.parameters},
                    {"tokens", report.tokens},
                    {"fits", std::move(fits)},
                    {"fullest_stage", int64_t(report.fullest)},
                    {"arena_bytes", report.fullestStage().memory.arena},
                    {"model_flops", report.modelFlops},
                    {"flops", report.flops},
                    {"again_flops", report.again},
                    {"seconds", secondsOrNull(report.time.seconds)},
                    {"idle_share", isTimed && report.pipeline ? json::Value(report.time.bubble)
                                                              : json::Value(nullptr)},
                    {"peak_share", isTimed && peak > 0 ? json::Value(report.modelFlops /
                                                                     (report.time.seconds * peak))
                                                       : json::Value(nullptr)},
                    {"pipeline", pipelineJson(report)},
                    {"stages", std::move(stages)},
                    {"attention", attentionJson(report)},
                    {"experts", expertsJson(report)},
                    {"expert_work", expertWorkJson(report)},
                    {"placement", placementJson(report)},
                    {"changes", std::move(changes)},
                    {"nearest_change", report.nearest ? json::Value(changeJson(*report.nearest))
                                                      : json::Value(nullptr)},
                    {"ceilings", ceilingsJson(report)}};
  return printed(std::move(root));
}

std::string explainRankJson(const Report& report, int64_t rank) {
  Card card = cardOf(report, rank);
  const Cluster& cluster = report.cluster();
  json::Object coordinates, units;
  for (const auto& [axis, at] : card.coordinates) coordinates[axis] = at;
  for (const auto& [level, at] : card.units) units[level] = at;
  json::Array holds, peers;
  for (const HeldVariable& held : card.holds)
    holds.push_back(json::Object{
        {"name", held.name}, {"kind", held.kind}, {"bytes", held.bytes}, {"holds", held.pieces}});
  for (const Peers& p : card.peers) {
    json::Array ranks;
    for (int64_t r : p.ranks) ranks.push_back(r);
    json::Object made = talkJson(p.talk, cluster);
    made["ranks"] = std::move(ranks);
    peers.push_back(std::move(made));
  }
  return printed(json::Object{{"schema", kExplainSchema},
                              {"plan", report.plan},
                              {"rank", rank},
                              {"coordinates", std::move(coordinates)},
                              {"units", std::move(units)},
                              {"stage", int64_t(card.stage)},
                              {"memory", memoryJson(report.stages[card.stage].memory)},
                              {"holds", std::move(holds)},
                              {"peers", std::move(peers)}});
}

}  // namespace planc
