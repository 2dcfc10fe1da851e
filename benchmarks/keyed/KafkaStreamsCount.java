import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams as a side of a comparison: counts records by key, exactly once.
 *
 * <p>One JSON object a line, as benchmarks/peer_sides/wire.py says; the process serves round after
 * round, so that its code is compiled once.
 */
public final class KafkaStreamsCount {
  private static final long PATIENCE_S = 240;

  public static void main(String[] arguments) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err);
    ObjectMapper json = new ObjectMapper();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      serve(json.readTree(line), in, out);
    }
  }

  private static void serve(JsonNode request, BufferedReader in, PrintStream out)
      throws Exception {
    String servers = request.get("servers").asText();
    String group = request.get("group").asText();
    long expected = request.get("records").asLong();
    JsonNode settings = request.get("settings");
    Properties chosen = new Properties();
    chosen.put(StreamsConfig.APPLICATION_ID_CONFIG, group);
    chosen.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
    chosen.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    chosen.put(StreamsConfig.STATE_DIR_CONFIG, settings.get("directory").asText());
    chosen.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    chosen.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    chosen.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    for (Map.Entry<String, JsonNode> each : settings.get("properties").properties()) {
      chosen.put(each.getKey(), each.getValue().asText());
    }
    LongAdder seen = new LongAdder();
    // when a thread has its first record: it may be at work before all of them are
    AtomicLong first = new AtomicLong();
    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(request.get("topic").asText(), Consumed.with(Serdes.String(), Serdes.String()))
        .peek(
            (key, value) -> {
              if (first.get() == 0) {
                first.compareAndSet(0, System.nanoTime());
              }
              seen.increment();
            })
        .groupByKey()
        .count()
        .toStream()
        .mapValues(String::valueOf)
        .to(settings.get("output").asText(), Produced.with(Serdes.String(), Serdes.String()));
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
    try (KafkaStreams streams = new KafkaStreams(builder.build(), chosen);
        Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) servers))) {
      streams.start();
      while (streams.state() != KafkaStreams.State.RUNNING && first.get() == 0) {
        require(streams, deadline, "not running");
        Thread.sleep(1);
      }
      long assigned = System.nanoTime();
      out.println("{\"event\": \"assigned\"}");
      out.flush();
      while (seen.sum() < expected || committed(admin, group) < expected) {
        require(streams, deadline, seen.sum() + " of " + expected + " records came");
        Thread.sleep(seen.sum() < expected ? 5 : 2);
      }
      long last = System.nanoTime();
      out.printf(
          "{\"event\": \"complete\", \"records\": %d, \"from_assignment\": %.4f,"
              + " \"from_first\": %.4f}%n",
          seen.sum(), (last - assigned) / 1e9, (last - first.get()) / 1e9);
      out.flush();
      in.readLine();
      if (!streams.close(Duration.ofSeconds(60))) {
        throw new IllegalStateException("not closed in 60 s");
      }
      streams.cleanUp();
    }
    out.println("{\"event\": \"stopped\"}");
    out.flush();
  }

  private static void require(KafkaStreams streams, long deadline, String what) {
    if (System.nanoTime() > deadline || streams.state() == KafkaStreams.State.ERROR) {
      throw new IllegalStateException(what);
    }
  }

  private static long committed(Admin admin, String group) throws Exception {
    long total = 0;
    for (OffsetAndMetadata each :
        admin
            .listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata()
            .get(30, TimeUnit.SECONDS)
            .values()) {
      total += each == null ? 0 : each.offset();
    }
    return total;
  }
}
