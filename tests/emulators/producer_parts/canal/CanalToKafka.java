import com.alibaba.otter.canal.connector.kafka.producer.CanalKafkaProducer;
import com.alibaba.otter.canal.instance.core.CanalInstance;
import com.alibaba.otter.canal.server.CanalMQStarter;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import java.util.Properties;
import org.springframework.context.support.FileSystemXmlApplicationContext;

/** A Canal server with one destination that sends flat messages to Kafka, as with canal.serverMode = kafka. */
public class CanalToKafka {
    public static void main(String[] arguments) throws Exception {
        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(destination ->
            new FileSystemXmlApplicationContext("file:" + arguments[0]).getBean("instance", CanalInstance.class));
        embedded.setMetricsPort(0);
        embedded.start();
        embedded.start(System.getProperty("canal.destination"));
        Properties settings = new Properties();
        settings.putAll(System.getProperties());
        CanalKafkaProducer producer = new CanalKafkaProducer();
        producer.init(settings);
        CanalMQStarter starter = new CanalMQStarter(producer);
        starter.start(System.getProperty("canal.destination"));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            starter.destroy();
            embedded.stop();
        }));
        System.out.println("canal is running");
        Thread.currentThread().join();
    }
}
