import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Debezium's engine with the settings of a file. It sends each event to Kafka before it saves the offset of the batch. */
public class DebeziumToKafka {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.load(Files.newBufferedReader(Path.of(arguments[0])));
        Properties kafka = new Properties();
        kafka.put("bootstrap.servers", arguments[1]);
        kafka.put("acks", "all");
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(kafka, new StringSerializer(), new StringSerializer());
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(settings)
            .using(new DebeziumEngine.ConnectorCallback() {
                @Override
                public void taskStarted() {
                    System.out.println("the task has started");
                }
            })
            .using((ok, message, error) -> {
                System.out.println("engine ended: " + message + " " + error);
                Runtime.getRuntime().halt(ok ? 0 : 1);
            })
            .notifying((events, committer) -> {
                for (ChangeEvent<String, String> event : events) {
                    producer.send(new ProducerRecord<>(event.destination(), event.key(), event.value()));
                }
                producer.flush();
                for (ChangeEvent<String, String> event : events) {
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
            })
            .build();
        engine.run();
    }
}
